// A backend that is lost at its n-th launch: that fails, and so does everything after it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "backend/backend.h"

namespace snug {

class FaultyBackend : public Backend {
 public:
  // Counts, from 1, launches of ops of this kind, or of all.
  FaultyBackend(std::unique_ptr<Backend> backend, std::string kind, int64_t fault)
      : backend_(std::move(backend)), kind_(std::move(kind)), fault_(fault) {}

  std::byte* reserve(Space space, uint64_t bytes) override { return backend_->reserve(space, bytes); }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    const Launch launch = backend_->bind(op, views), fail = failing(op);
    const bool counts = kind_.empty() || kind_ == kind(op.attrs);
    return [this, launch, fail, counts](const RuntimeScalars& runtime) {
      if (counts && ++launches_ == fault_) lost_ = true;
      (lost_ ? fail : launch)(runtime);
    };
  }
  void read(void* to, const std::byte* from, uint64_t bytes) override { backend_->read(to, from, bytes); }
  void write(std::byte* to, const void* from, uint64_t bytes) override { backend_->write(to, from, bytes); }
  Streams* streams() override { return backend_->streams(); }

 private:
  // On a device, a kernel that reads where nothing is: its context is lost from there on.
  Launch failing(const Op& op) {
    if (!backend_->streams())
      return [site = op.site](const RuntimeScalars&) { device_error("{}: the device is lost", site); };
    Op cast;
    cast.attrs = Cast{};
    cast.lane = op.lane;
    cast.site = "a fault";
    auto* const nothing = reinterpret_cast<std::byte*>(uintptr_t{1} << 12);
    const std::array views{TensorView{nothing, DType::F32, {64}, 64}, TensorView{nothing, DType::BF16, {64}, 64}};
    return backend_->bind(cast, views);
  }

  std::unique_ptr<Backend> backend_;
  const std::string kind_;
  const int64_t fault_;
  std::atomic<int64_t> launches_ = 0;
  std::atomic<bool> lost_ = false;
};

}  // namespace snug
