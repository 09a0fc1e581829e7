#include "comm/mpi.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/mpi_team.h"

namespace snug {
namespace {

const SnugMpi& module() {
#if defined(SNUG_MPI_LIBRARY)  // of a package, whose module names no library of the system
  if (!dlopen(SNUG_MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL))
    user_error(
        "started as one of several processes, but {} cannot be opened: {}; install Open MPI 4 or 5, or start snug "
        "without mpirun",
        SNUG_MPI_LIBRARY, dlerror());
#endif
  void* library = dlopen("libsnug_mpi.so", RTLD_NOW | RTLD_GLOBAL);  // Open MPI's own modules look for its symbols
  if (!library)
    user_error(
        "started as one of several processes, but libsnug_mpi.so cannot be opened: {}; build snug where Open MPI "
        "is installed, or start it without mpirun",
        dlerror());
  const auto table = reinterpret_cast<const SnugMpi* (*)()>(dlsym(library, "snug_mpi"));
  if (!table) device_error("libsnug_mpi.so is not snug's: {}", dlerror());
  return *table();
}

class MpiComm final : public Comm {
 public:
  MpiComm(Topology topology, std::shared_ptr<MpiTeam> team) : Comm(topology), team_(std::move(team)) {
    for (std::vector<Piece>& pieces : pieces_) pieces.reserve(2 * static_cast<size_t>(topology.ranks));
  }
  ~MpiComm() override {
    if (std::uncaught_exceptions() > exceptions_) team_->fail(topology().rank, "failed, as its own process says");
    team_->watch().ended(topology().rank);
  }

  void leave(std::string_view reason) noexcept override {
    team_->fail(topology().rank, fmt::format("failed: {}", reason));
    team_->wait_until_told();
  }
  void heartbeat() noexcept override { team_->watch().advanced(topology().rank); }
  void wait_until(const std::function<bool()>& done) override;
  std::optional<PeerError> failure() const override { return team_->failure(); }
  const std::shared_ptr<MpiProcess>& process() const { return team_->process(); }

  static_assert(MpiTeam::kNewsChannel == kChannels);

 private:
  struct Piece {
    SnugMpiRequest request;
    int rank = 0;
    bool done = false;
  };

  void elaborate(const PeerError& failure) noexcept override { team_->elaborate(failure); }
  void step(size_t channel, const ExchangeStep& step) override;
  void pass(size_t channel, const ExchangeStep& step, uint64_t begin, uint64_t bytes);
  void wait_for(std::vector<Piece>& pieces);
  void look_at(const std::vector<Piece>& pieces, int64_t since);

  const std::shared_ptr<MpiTeam> team_;
  const int exceptions_ = std::uncaught_exceptions();
  std::array<std::vector<Piece>, kChannels> pieces_;  // by channel, of the call under way
};

void MpiComm::step(size_t channel, const ExchangeStep& step) {
  const int own = topology().place(step.who);
  if (topology().count(step.who) > 1) {
    const MpiTeam::Calling calling(*team_);
    const uint64_t piece = team_->process()->piece;
    for (uint64_t begin = 0; begin < step.bytes && !team_->failed(); begin += piece)
      pass(channel, step, begin, std::min(piece, step.bytes - begin));
  }
  if (team_->failed()) team_->stop();
  step.take(own, step.row_for(topology()));
}

// Returns when the messages of this piece have passed, or when the job has failed.
void MpiComm::pass(size_t channel, const ExchangeStep& step, uint64_t begin, uint64_t bytes) {
  const Topology& here = topology();
  const SnugMpi& mpi = team_->process()->mpi;
  const int ranks = here.count(step.who), own = here.place(step.who), number = static_cast<int>(channel);
  std::vector<Piece>& pieces = pieces_[channel];
  pieces.clear();
  for (int i = 1; i < ranks; i++) {
    const int place = (own + ranks - i) % ranks, rank = here.rank_at(step.who, place);
    Piece& piece = pieces.emplace_back(Piece{{}, rank});
    if (!team_->demand(mpi.receive(number, team_->process_of(rank), team_->tag(rank, here.rank),
                                   step.row_from(place) + begin, bytes, &piece.request),
                       rank))
      return;
  }
  for (int i = 1; i < ranks; i++) {
    const int rank = here.rank_at(step.who, (own + i) % ranks);
    Piece& piece = pieces.emplace_back(Piece{{}, rank});
    if (!team_->demand(mpi.send(number, team_->process_of(rank), team_->tag(here.rank, rank),
                                step.row_for(here.seen_by(rank)) + begin, bytes, &piece.request),
                       rank))
      return;
  }
  wait_for(pieces);
}

// Waits for messages; each test moves them on.
void MpiComm::wait_for(std::vector<Piece>& pieces) {
  Waiting waiting(team_->watch(), topology().rank);
  size_t left = pieces.size();
  for (int turn = 1; !team_->failed(); turn++) {
    for (Piece& piece : pieces) {
      int done = 0;
      if (piece.done || !team_->demand(team_->process()->mpi.test(&piece.request, &done), piece.rank) || !done)
        continue;
      piece.done = true;
      left--;
      // News may be far behind the messages, which show that neither rank is lost or hangs.
      team_->watch().heard(piece.rank);
      team_->watch().advanced(topology().rank);
    }
    if (left == 0) return;
    if (turn % 256 == 0) look_at(pieces, waiting.since());
    pause(turn);
  }
}

void MpiComm::wait_until(const std::function<bool()>& done) {
  if (team_->failed()) team_->stop();
  if (done()) return;
  Waiting waiting(team_->watch(), topology().rank);
  for (int turn = 1; !done(); turn++) {
    pause(turn);
    if (team_->failed()) team_->stop();
    if (turn % 256 != 0) continue;
    if (const auto fault = team_->watch().fault(topology().rank, waiting.since(), true))
      team_->fail(fault->rank, fault->what);
  }
}

void MpiComm::look_at(const std::vector<Piece>& pieces, int64_t since) {
  int missing = -1;
  for (const Piece& piece : pieces) {
    if (piece.done) continue;
    missing = piece.rank;
    if (const std::string what = team_->watch().complaint(missing, since, true); !what.empty())
      team_->fail(missing, what);
  }
  if (team_->watch().stuck(since)) team_->fail(missing, "and others wait for each other");
}

std::vector<std::unique_ptr<Comm>> connect(const std::shared_ptr<MpiProcess>& process, int locals) {
  const auto team = std::make_shared<MpiTeam>(process, locals);
  std::vector<std::unique_ptr<Comm>> ranks;
  for (int local = 0; local < locals; local++)
    ranks.push_back(
        std::make_unique<MpiComm>(Topology{process->count * locals, 1, process->number * locals + local}, team));
  return ranks;
}

}  // namespace

bool started_by_mpi() {
  if (const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE")) return std::atoi(ranks) > 1;
  // A process alone, in a shell that srun has started for example, needs no MPI.
  const auto several = [](const char* name) {
    const char* const tasks = std::getenv(name);
    return !tasks || std::atoi(tasks) > 1;
  };
  return (std::getenv("PMIX_RANK") && several("SLURM_STEP_NUM_TASKS")) ||
         (std::getenv("PMI_RANK") && several("PMI_SIZE"));
}

std::unique_ptr<Comm> open_mpi(double patience, uint64_t piece) {
  const auto process = std::make_shared<MpiProcess>(module(), patience, piece);
  // Channels for the work, and one for news.
  if (const int code = process->mpi.start(MpiTeam::kNewsChannel + 1, &process->number, &process->count))
    device_error("MPI does not start: {}", explain(process->mpi, code));
  return std::move(connect(process, 1)[0]);
}

std::vector<std::unique_ptr<Comm>> mpi_ranks(std::unique_ptr<Comm> processes, int locals) {
  const auto* comm = dynamic_cast<const MpiComm*>(processes.get());
  check(comm && locals > 0, "{} ranks of a process that MPI did not connect", locals);
  processes->barrier("the start of all ranks");
  const std::shared_ptr<MpiProcess> process = comm->process();
  processes.reset();
  if (!process->at_rest) device_error("another process was lost before its ranks were there");
  return connect(process, locals);
}

}  // namespace snug
