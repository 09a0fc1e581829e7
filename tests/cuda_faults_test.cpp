// The same of real cards: a kernel that reads where nothing is, and a card whose memory others hold.
#define SNUG_TESTS_ON_CUDA
#include <cuda_runtime_api.h>

#include "api/job.h"
#include "backend/cuda/backend.h"
#include "expect_error.h"
#include "faults_test.cpp"

namespace snug {
namespace {

// Another program: all memory of the first card but so many bytes.
class Ballast {
 public:
  explicit Ballast(uint64_t left) {
    constexpr uint64_t kPiece = 32 << 20;
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) throw std::runtime_error("the card does not tell what is free");
    for (uint64_t bytes = free - std::min(free, left); bytes > kPiece; bytes -= kPiece) {
      if (cudaMalloc(&start_, bytes) == cudaSuccess) return;
      cudaGetLastError();
    }
    throw std::runtime_error("the card gives no memory");
  }
  ~Ballast() { cudaFree(start_); }
  Ballast(const Ballast&) = delete;
  Ballast& operator=(const Ballast&) = delete;

 private:
  void* start_ = nullptr;
};

struct ACard : Cli {
  void SetUp() override {
    if (cuda_cards().empty()) GTEST_SKIP() << "there is no GPU";
  }
};

TEST_F(ACard, WithLessMemoryThanPlannedDoesNotFit) {
  CudaBackend backend(0);
  const Ballast ballast(256 << 20);
  for (const char* part : {"reserving 1073741824 bytes for the device space: found ", " bytes free", "--device-memory"})
    EXPECT_TRUE(fails_with<CapacityError>([&] { backend.reserve(Space::Device, 1 << 30); }, part));
  EXPECT_NE(backend.reserve(Space::Device, 1 << 20), nullptr) << "nothing but that call has failed";
}

TEST_F(ACard, ThatIsHeldByOthersIsPlannedAsItIsWhateverMachineIsNamed) {
  const Ballast ballast(uint64_t{2} << 30);
  JobConfig options;
  options.device = "cuda";
  options.machine = "8xH200";
  const Target target(options);
  EXPECT_LT(caps_of(options, target, PlanMode::Run).device_bytes, uint64_t{3} << 30);
  EXPECT_GT(caps_of(options, target, PlanMode::Look).device_bytes, uint64_t{130} << 30);
}

TEST_F(ACard, WithoutRoomForTheDriverIsRefusedByThePlan) {
  const Ballast ballast(64 << 20);
  const Outcome outcome = run(job("train", {"--device", "cuda", "--ranks", "1"}));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
}

}  // namespace
}  // namespace snug
