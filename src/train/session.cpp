#include "train/session.h"

#include <algorithm>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/disk.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "plan/lowering/fingerprint.h"
#include "tensor/step_scalars.h"
#include "train/checksum.h"
#include "train/trace_json.h"

namespace snug {

namespace {

// A trace has at most this many events: some tens of megabytes here, and twice that as JSON.
constexpr size_t kMostEvents = 1 << 19;

Compiled compile_for(const JobSpec& spec, int threads) {
  set_threads(threads);  // the scratch of products depends on the team
  return compile(spec, CpuFacts());
}

}  // namespace

Session::Session(JobSpec spec, int threads, LaneMode lanes, Comm* comm)
    : Session(spec, compile_for(spec, threads), {.threads = threads, .lanes = lanes, .comm = comm}) {}

Session::Session(JobSpec spec, Compiled compiled, const Resources& resources)
    : spec_(std::move(spec)), compiled_(std::move(compiled)), comm_(resources.comm) {
  set_threads(resources.threads);
  if (comm_) {
    const Fields fields = fields_of(spec_);
    comm_->agree("what is trained, or how", hash_of_fields(fields, kResultFields));
    comm_->agree("the cut of a step", hash_of_fields(fields, {kCutFields}));
    comm_->agree("the program of a step", compiled_.collective_hash);
  }
  backend_ = resources.backend ? resources.backend() : std::make_unique<CpuBackend>();
  arena_ = std::make_unique<Arena>(*backend_, compiled_.plan, resources.disk_directory, heartbeat());
  auto host = [this](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& runtime) {
    const auto handler = handlers_.find(task.job);
    check(handler != handlers_.end(), "no handler for host job {}", static_cast<int>(task.job));
    handler->second(task, views, runtime);
    if (task.job == HostJob::TakeMetrics) {
      const StepScalars& scalars = *step_scalars(views[1]);
      clipped_ = scalars.factor != 1 || scalars.finite == 0;
    }
  };
  executor_ =
      make_executor(compiled_.set, compiled_.plan, *backend_, *arena_, comm_, host, resources.lanes, resources.threads);
  // A device that waits for another must not hold up the driver, as that one's rank may still prepare.
  barrier("the end of preparations");
}

Session::~Session() = default;

void Session::run(Task task, const RuntimeScalars& runtime, int shape) {
  reapply();
  if (pending_ && (task == Task::Pass || task == Task::First)) {
    const RuntimeScalars before = *std::exchange(pending_, std::nullopt);
    return executor_->run(at(pending(task), shape), runtime, {}, &before);
  }
  flush();
  exchange_weights_for(task);
  executor_->run(at(task, shape), runtime);
  if (task != Task::Update) return;
  if (compiled_.has(Task::Flush)) pending_ = runtime;
  if (!compiled_.has(Task::Reapply)) return;
  if (clipped_)
    reapply_ = runtime;
  else
    swapped_ = !swapped_;
}

void Session::reapply() {
  if (!reapply_) return;
  executor_->run(at(Task::Reapply), *std::exchange(reapply_, std::nullopt));
  swapped_ = !swapped_;
  reapplied_++;
}

void Session::flush() {
  reapply();
  if (pending_) executor_->run(at(Task::Flush), *std::exchange(pending_, std::nullopt));
}

void Session::exchange_weights_for(Task task) {
  if (!compiled_.has(Task::ToAverage) || uses_average(task) == averaged_) return;
  executor_->run(at(averaged_ ? Task::FromAverage : Task::ToAverage), {});
  averaged_ = !averaged_;
}

void Session::load() {
  require_weights(spec_.sources);
  if (comm_) comm_->agree("what the files of model and adapter hold", hash_of_files(spec_.sources, heartbeat()));
  std::vector<File> files;
  std::vector<File*> pointers;
  for (const auto& path : spec_.sources.files) files.push_back(File::open_read(path, IoMode::Direct));
  for (File& file : files) pointers.push_back(&file);
  executor_->run(compiled_.at(Task::Load), {}, pointers);
  executor_->finish();
}

const OutputFiles& Session::files_of(Task task) const {
  return task == Task::Export ? compiled_.exported : compiled_.saved;
}

void Session::write(Task task, const std::filesystem::path& directory) {
  const OutputFiles& outputs = files_of(task);
  std::vector<File> files;
  std::vector<File*> pointers;
  const bool writes = task == Task::Save || rank() == 0;
  for (size_t i = 0; writes && i < outputs.names.size(); i++) {
    files.push_back(File::create(directory / outputs.names[i], IoMode::Direct));
    files.back().allocate(outputs.layouts[i].file_bytes, heartbeat());
    if (task == Task::Save) files.back().start_checksum();
  }
  std::vector<File> sources;
  const std::vector<Op>& ops = compiled_.set.programs[at(task)].ops;
  if (std::ranges::any_of(ops, [](const Op& op) { return std::holds_alternative<ReadFile>(op.attrs); }))
    for (const auto& path : spec_.sources.files) sources.push_back(File::open_read(path, IoMode::Direct));
  for (std::vector<File>* const opened : {&files, &sources})
    for (File& file : *opened) pointers.push_back(&file);
  on(HostJob::FillHeader, [&](const HostTask& task, std::span<const TensorView> views, RuntimeScalars&) {
    const std::string& header = outputs.layouts[static_cast<size_t>(task.index)].header;
    std::ranges::copy(header, views[0].as<uint8_t>());
  });
  flush();
  exchange_weights_for(task);
  executor_->run(at(task), {}, pointers);
  executor_->finish();
  for (File& file : files) {
    file.sync();
    call(heartbeat());
  }
  if (task == Task::Save)
    for (const File& file : files) write_checksum(file);
  if (writes && !outputs.index_json.empty()) write_text(directory / "model.safetensors.index.json", outputs.index_json);
}

void Session::restore(const std::filesystem::path& directory) {
  std::vector<File> files;
  std::vector<File*> pointers;
  for (const auto& path : compiled_.restored_files)
    files.push_back(File::open_read(directory / path.filename(), IoMode::Direct));
  // Each file is checked by one rank.
  for (size_t i = 0; i < files.size(); i++)
    if (!spec_.saved || static_cast<int>(i) % spec_.cut.ranks == rank()) require_checksum(files[i].path(), heartbeat());
  barrier("the check of a checkpoint's files");
  // Without a saved state in the spec the files must be exactly those that this job writes.
  if (!spec_.saved) {
    const SafetensorsLayout& layout = compiled_.saved.layouts[0];
    std::string header(layout.header.size(), '\0');
    if (files[0].size() == layout.file_bytes) files[0].read(0, std::as_writable_bytes(std::span(header)));
    if (header != layout.header)
      user_error("{}: holds other tensors than this job trains; resume with the options of the run's job.yaml",
                 files[0].path().string());
  }
  for (File& file : files) pointers.push_back(&file);
  executor_->run(compiled_.at(Task::Restore), {}, pointers);
  executor_->finish();
}

TensorView Session::view(const Operand& operand) {
  if (compiled_.set.buffers[operand.buffer].life == Life::Persistent) flush();
  executor_->finish();
  return executor_->view(operand);
}

TensorView Session::view(const Operand& operand, std::vector<std::byte>& bytes) {
  TensorView copy = view(operand);
  bytes.resize(operand.extent());
  backend_->read(bytes.data(), copy.data, bytes.size());
  copy.data = bytes.data();
  return copy;
}

uint64_t Session::arena_bytes(Space space) const { return arena_->bytes(space); }
std::optional<uint64_t> Session::device_bytes_taken() const { return backend_->device_bytes_taken(); }

void Session::agree(std::string_view what, uint64_t value) {
  if (comm_) comm_->agree(what, value);
}

void Session::barrier(const SyncPoint& at) {
  if (comm_) comm_->barrier(at);
}

uint64_t Session::as_rank_0(uint64_t value, const SyncPoint& at, uint64_t of_any) {
  if (!comm_) return value;
  const std::span<const uint64_t> values = comm_->allgather_host(value, at);
  uint64_t all = values[0];
  for (const uint64_t one : values) all |= one & of_any;
  return all;
}

uint64_t Session::least_over_ranks(uint64_t value, const SyncPoint& at) {
  return comm_ ? *std::ranges::min_element(comm_->allgather_host(value, at)) : value;
}

void Session::start_trace(int64_t steps) {
  std::vector<ProgramId> programs;
  for (const Task task : {Task::Pass, Task::First, Task::Middle, Task::Last, Task::PassDeferred, Task::FirstDeferred,
                          Task::Update, Task::Flush, Task::Reapply})
    for (const auto& [key, program] : compiled_.programs)
      if (key.task == task) programs.push_back(program);
  size_t events = 0;
  auto count = [&](Task task) { events += compiled_.set.programs[compiled_.at(task)].ops.size(); };
  for (const Task task : compiled_.passes) count(task);
  for (const Task task : {Task::Update, Task::Flush, Task::Reapply})
    if (compiled_.has(task)) count(task);
  events = std::min(events * static_cast<size_t>(steps), kMostEvents);
  executor_->finish();
  executor_->note_in(&trace_.emplace(std::move(programs), events));
}

void Session::write_trace(const std::filesystem::path& path) {
  executor_->finish();
  executor_->note_in(nullptr);
  write_text(path, trace_json(compiled_.set, compiled_.plan,
                              trace_ ? trace_->events() : std::span<const Trace::Event>(), rank()));
}

}  // namespace snug
