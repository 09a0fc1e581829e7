#include "backend/cuda/cards.h"

#include <dlfcn.h>

#include <array>

#include "backend/cuda/check.h"

namespace snug {
namespace {

// What is used here of NVML's interface: the driver brings the library, and memory can be asked for without a context.
class Nvml {
 public:
  Nvml() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library_) device_error("libnvidia-ml.so.1: {}; it comes with NVIDIA's driver", dlerror());
    get("nvmlInit_v2", init_);
    get("nvmlShutdown", shutdown_);
    get("nvmlDeviceGetHandleByPciBusId_v2", by_bus_);
    get("nvmlDeviceGetMemoryInfo", memory_);
    check_nvml(init_(), "nvmlInit");
  }
  ~Nvml() {
    if (shutdown_) shutdown_();
    dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  Memory memory(const char* bus) const {
    void* device = nullptr;
    Memory memory;
    check_nvml(by_bus_(bus, &device), "nvmlDeviceGetHandleByPciBusId");
    check_nvml(memory_(device, &memory), "nvmlDeviceGetMemoryInfo");
    return memory;
  }

 private:
  template <class F>
  void get(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library_, name));
    if (!function) device_error("libnvidia-ml.so.1 has no {}", name);
  }
  static void check_nvml(int status, std::string_view what) {
    if (status != 0) device_error("{}: NVML's error {}", what, status);
  }

  void* library_ = nullptr;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*by_bus_)(const char*, void**) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
};

}  // namespace

std::vector<Card> cuda_cards() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return {};
  const Nvml nvml;
  std::vector<Card> cards;
  for (int device = 0; device < count; device++) {
    cudaDeviceProp properties{};
    cuda::check_cuda(cudaGetDeviceProperties(&properties, device), "a GPU's properties");
    std::array<char, 32> bus{};
    cuda::check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "a GPU's bus");
    const Nvml::Memory memory = nvml.memory(bus.data());
    cards.push_back({properties.name, memory.total, memory.free});
  }
  return cards;
}

}  // namespace snug
