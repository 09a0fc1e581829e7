#include "train/session.h"

#include <algorithm>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/parallel.h"

namespace snug {

namespace {

Compiled compile_for(const JobSpec& spec, int threads) {
  set_threads(threads);  // products' scratch depends on the team
  return compile(spec, CpuFacts());
}

}  // namespace

Session::Session(JobSpec spec, int threads, LaneMode lanes)
    : Session(spec, compile_for(spec, threads), threads, lanes) {}

Session::Session(JobSpec spec, Compiled compiled, int threads, LaneMode lanes)
    : spec_(std::move(spec)), compiled_(std::move(compiled)) {
  set_threads(threads);
  backend_ = std::make_unique<CpuBackend>();
  arena_ = std::make_unique<Arena>(*backend_, compiled_.plan);
  auto host = [this](const HostTask& task, std::span<const TensorView> views, PassFacts& facts) {
    const auto handler = handlers_.find(task.job);
    check(handler != handlers_.end(), "no handler for host job {}", static_cast<int>(task.job));
    handler->second(task, views, facts);
  };
  executor_ = std::make_unique<Executor>(compiled_.set, compiled_.plan, *backend_, *arena_, host, lanes, threads);
}

Session::~Session() = default;

void Session::run(Task task, const PassFacts& facts) { executor_->run(compiled_.at(task), facts); }

void Session::load() {
  require_weights(spec_.sources);
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
  for (size_t i = 0; i < outputs.names.size(); i++) {
    files.push_back(File::create(directory / outputs.names[i], IoMode::Direct));
    files.back().allocate(outputs.layouts[i].file_bytes);
  }
  for (File& file : files) pointers.push_back(&file);
  on(HostJob::FillHeader, [&](const HostTask& task, std::span<const TensorView> views, PassFacts&) {
    const std::string& header = outputs.layouts[static_cast<size_t>(task.index)].header;
    std::ranges::copy(header, views[0].as<uint8_t>());
  });
  executor_->run(compiled_.at(task), {}, pointers);
  executor_->finish();
  for (File& file : files) file.sync();
  if (!outputs.index_json.empty()) write_text(directory / "model.safetensors.index.json", outputs.index_json);
}

void Session::restore(const std::filesystem::path& directory) {
  std::vector<File> files;
  std::vector<File*> pointers;
  for (const auto& path : compiled_.restored_files)
    files.push_back(File::open_read(directory / path.filename(), IoMode::Direct));
  // Without a saved state in the spec the files must be just those that this job writes.
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
  executor_->finish();
  return executor_->view(operand);
}

uint64_t Session::arena_bytes(Space space) const { return arena_->bytes(space); }

}  // namespace snug
