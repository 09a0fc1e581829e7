#include "backend/cuda/cards.h"

#include <array>
#include <optional>

#include "backend/cuda/check.h"
#include "base/option_name.h"
#include "base/shared_library.h"

namespace snug {
namespace {

// Calls NVML, the driver's library, which reports memory without a context.
class Nvml {
 public:
  Nvml() {
    library_.get("nvmlInit_v2", init_);
    library_.get("nvmlShutdown", shutdown_);
    library_.get("nvmlDeviceGetHandleByPciBusId_v2", by_bus_);
    library_.get("nvmlDeviceGetMemoryInfo", memory_);
    check_nvml(init_(), "nvmlInit");
  }
  ~Nvml() { shutdown_(); }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  void* device(const char* bus) const {
    void* device = nullptr;
    check_nvml(by_bus_(bus, &device), "nvmlDeviceGetHandleByPciBusId");
    return device;
  }
  Memory memory(void* device) const {
    Memory memory;
    check_nvml(memory_(device, &memory), "nvmlDeviceGetMemoryInfo");
    return memory;
  }
  std::string condition(void* device) const {
    constexpr int kDie = 0, kProcessors = 1, kMemory = 2;  // sensor, clocks
    std::vector<std::string> parts;
    std::array<char, 96> version{};
    const auto read_version = library_.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
    if (read_version && read_version(version.data(), version.size()) == 0)
      parts.push_back(fmt::format("driver {}", version.data()));
    if (const auto celsius = number("nvmlDeviceGetTemperature", device, kDie))
      parts.push_back(fmt::format("{} C", *celsius));
    if (const auto now = number("nvmlDeviceGetClockInfo", device, kProcessors))
      parts.push_back(fmt::format("{} MHz", *now));
    if (const auto most = number("nvmlDeviceGetMaxClockInfo", device, kProcessors))
      parts.push_back(fmt::format("at most {} MHz", *most));
    if (const auto memory = number("nvmlDeviceGetClockInfo", device, kMemory))
      parts.push_back(fmt::format("memory {} MHz", *memory));
    if (const auto milliwatts = number("nvmlDeviceGetEnforcedPowerLimit", device))
      parts.push_back(fmt::format("at most {} W", *milliwatts / 1000));
    return fmt::format("{}", fmt::join(parts, ", "));
  }

 private:
  // Returns a number; nothing if this driver or card does not report it.
  template <class... What>
  std::optional<unsigned> number(const char* name, void* device, What... what) const {
    const auto ask = library_.find<int(void*, What..., unsigned*)>(name);
    unsigned value = 0;
    return ask && ask(device, what..., &value) == 0 ? std::optional(value) : std::nullopt;
  }
  static void check_nvml(int status, std::string_view what) {
    if (status != 0) device_error("{}: NVML's error {}", what, status);
  }

  SharedLibrary library_{{"libnvidia-ml.so.1"}, "it comes with NVIDIA's driver"};
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*by_bus_)(const char*, void**) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
};

// Returns whether there is a driver: the runtime gives one name to a driver that is too old and to none.
bool has_driver() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
}

}  // namespace

std::vector<Card> cuda_cards() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || (status == cudaErrorInsufficientDriver && !has_driver())) return {};
  if (status != cudaSuccess)
    device_error("GPUs cannot be counted: {}; {} cpu does without", cudaGetErrorString(status), option_name("device"));
  if (count == 0) return {};
  const Nvml nvml;
  std::vector<Card> cards;
  for (int device = 0; device < count; device++) {
    cudaDeviceProp properties{};
    cuda::check_cuda(cudaGetDeviceProperties(&properties, device), "a GPU's properties");
    std::array<char, 32> bus{};
    cuda::check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "a GPU's bus");
    void* const card = nvml.device(bus.data());
    const Nvml::Memory memory = nvml.memory(card);
    cards.push_back({properties.name, 10 * properties.major + properties.minor, memory.total, memory.free, bus.data(),
                     nvml.condition(card)});
  }
  return cards;
}

}  // namespace snug
