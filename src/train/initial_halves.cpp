#include "train/initial_halves.h"

#include <algorithm>

#include "base/file.h"
#include "format/load.h"
#include "plan/spec/initial_file.h"
#include "train/principal_halves.h"

namespace snug {
namespace {

class InitialHalves {
 public:
  InitialHalves(const JobSpec& spec, File& out, const Heartbeat& heartbeat)
      : spec_(spec), file_(initial_file(spec.table)), out_(out), heartbeat_(heartbeat) {}

  void write() {
    out_.resize(file_.layout.file_bytes);
    out_.write(0, std::as_bytes(std::span(file_.layout.header)));
    for (const LayerParams& layer : spec_.table.layers)
      for (const Linear* linear : layer.linears())
        for (size_t i = 0; i < linear->lora.parts.size(); i++) write(*linear, i);
    out_.sync();
  }

 private:
  void write(const Linear& linear, size_t i) {
    const LoraPart& part = linear.lora.parts[i];
    ParamId weight = linear.weight;
    for (int64_t row = 0; row < part.row_begin; weight++) row += spec_.table[weight].shape.rows();
    const std::vector<float> values = read(weight);
    const MatrixView w{values, spec_.table[weight].shape.rows(), linear.in};
    LoraHalves halves =
        spec_.rules.adapter->init == LoraInit::Pissa
            ? principal_halves(w, part.rank, static_cast<double>(part.scale), spec_.numerics.seed, heartbeat_)
            : orthogonal_halves(w, part.rank, heartbeat_);
    store(linear.lora.a_of(i), halves.a);
    store(part.b, halves.b);
    for (float& value : halves.b) value = -value;
    store(linear.lora.initial_b + static_cast<ParamId>(i), halves.b);
  }

  std::vector<float> read(ParamId id) const {
    const auto& place = std::get<TensorPlace>(spec_.sources.params[static_cast<size_t>(id)]);
    const File file = File::open_read(spec_.sources.files[static_cast<size_t>(place.file)], IoMode::Buffered);
    std::vector<float> values(static_cast<size_t>(spec_.table[id].shape.count()));
    constexpr size_t kChunk = 1 << 20;
    std::vector<std::byte> bytes(kChunk * element_bytes(place.dtype));
    for (size_t begin = 0; begin < values.size(); begin += kChunk) {
      const size_t count = std::min(kChunk, values.size() - begin);
      const auto stored = std::span(bytes).first(count * element_bytes(place.dtype));
      file.read(place.offset + begin * element_bytes(place.dtype), stored);
      dispatch_float(place.dtype, [&]<class T>() {
        for (size_t k = 0; k < count; k++)
          values[begin + k] = static_cast<float>(load<T>(stored.data() + k * sizeof(T)));
      });
      call(heartbeat_);
    }
    return values;
  }

  void store(ParamId id, const std::vector<float>& values) {
    const auto tensor = static_cast<size_t>(file_.tensor_of[static_cast<size_t>(id)]);
    out_.write(file_.layout.offset[tensor], std::as_bytes(std::span(values)));
  }

  const JobSpec& spec_;
  const InitialFile file_;
  File& out_;
  const Heartbeat& heartbeat_;
};

}  // namespace

void write_initial_halves(const JobSpec& spec, const std::filesystem::path& file, const Heartbeat& heartbeat) {
  std::filesystem::create_directories(file.parent_path());
  PendingFile pending(file, IoMode::Buffered);
  InitialHalves(spec, pending.file(), heartbeat).write();
  pending.publish();
}

}  // namespace snug
