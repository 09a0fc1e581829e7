#include "plan/lowering/persist.h"

#include <algorithm>
#include <charconv>

#include "plan/lowering/load.h"

namespace snug {
namespace {

// Every rank has what it restored; now all have all that they hold.
void share_trained(const JobContext& job, Emitter& e) {
  for (int g = 0; g < job.table.group_count(); g++) {
    e.scope(fmt::format("group.{}.share", g));
    const int64_t elements = job.layout().segment(g, SegmentKind::Trained).elements;
    for (const Array& array : job.storage.weights(g, SegmentKind::Trained)) share(job, e, array.held, elements);
    for (const Array& state : job.storage.states(g)) share(job, e, state.held, elements);
  }
}

// A stretch of elements of one array of a run, which a checkpoint keeps.
struct Kept {
  std::string name;  // "<first parameter of the run>.<array>"
  const ShardedArray* held;
  Span span;      // of the segment: what this rank owns
  int64_t start;  // of the run
};

std::vector<Kept> kept_arrays(const JobContext& job) {
  std::vector<Kept> all;
  for (int g = 0; g < job.table.group_count(); g++) {
    const Layout::Segment& segment = job.layout().segment(g, SegmentKind::Trained);
    for (const Layout::Run& run : segment.runs) {
      const Span span = intersection(run.span, job.layout().part(segment.elements));
      if (span.count() == 0) continue;
      const std::string& name = job.table[run.first].name;
      all.push_back({name + ".value", &job.storage.values(g, SegmentKind::Trained), span, run.span.begin});
      for (const Array& state : job.storage.states(g))
        all.push_back({fmt::format("{}.{}", name, state.name), &state.held, span, run.span.begin});
    }
  }
  return all;
}

// Of the values that a stretch of elements has in an array: which ones of the run's.
Span values_of(const Kept& kept) {
  const int64_t begin = (kept.span.begin - kept.start) / kept.held->block;
  return {begin, begin + slice(*kept.held, kept.span).shape.count()};
}

std::optional<DType> saved_dtype(const std::string& name) {
  if (name == "F32") return DType::F32;
  if (name == "BF16") return DType::BF16;
  if (name == "I16") return DType::I16;
  if (name == "U8") return DType::U8;
  return std::nullopt;
}

std::string state_file_name(int rank, int ranks) {
  return fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, ranks);
}

}  // namespace

Output state_output(const JobContext& job) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Transfer> transfers;
  for (const Kept& kept : kept_arrays(job)) {
    const Operand stored = slice(*kept.held, kept.span);
    tensors.push_back({fmt::format("{}@{}", kept.name, values_of(kept).begin), stored.dtype, stored.shape});
    transfers.push_back({{stored}, {0, 0, stored.dtype}});
  }
  return one_file(state_file_name(job.topology().rank, job.topology().ranks), tensors, std::move(transfers));
}

SavedState assumed_saved_state(const JobContext& job) {
  const Output output = state_output(job);
  SavedState saved;
  saved.files = {output.files.names[0]};
  saved.file_bytes = {output.files.layouts[0].file_bytes};
  size_t next = 0;
  for (const Kept& kept : kept_arrays(job))
    saved.arrays[kept.name].push_back({values_of(kept), output.transfers[next++].place});
  return saved;
}

SavedState find_saved_state(const std::filesystem::path& directory) {
  SavedState saved;
  int ranks = 1;
  for (int rank = 0; rank < ranks; rank++) {
    std::filesystem::path path;
    if (rank == 0) {
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        int found = 0;
        if (!name.starts_with("state-00001-of-") || name.size() != state_file_name(0, 1).size()) continue;
        const auto [end, bad] = std::from_chars(name.data() + 15, name.data() + 20, found);
        if (bad == std::errc() && end == name.data() + 20 && found > 0) ranks = found;
      }
    }
    path = directory / state_file_name(rank, ranks);
    const SafetensorsIndex index = SafetensorsIndex::open_file(path);
    const auto file = static_cast<int64_t>(saved.files.size());
    saved.files.push_back(path);
    saved.file_bytes.push_back(std::filesystem::file_size(path));
    for (const SafetensorsEntry& entry : index.entries()) {
      const size_t at = entry.name.rfind('@');
      const auto dtype = saved_dtype(entry.dtype_name);
      int64_t begin = -1;
      if (at != std::string::npos) {
        const char* const end_of_name = entry.name.data() + entry.name.size();
        const auto [end, bad] = std::from_chars(entry.name.data() + at + 1, end_of_name, begin);
        if (bad != std::errc() || end != end_of_name) begin = -1;
      }
      if (begin < 0 || !dtype || entry.shape.size() != 1 || begin > INT64_MAX - entry.shape[0])
        user_error("{}: tensor '{}' of {} is no stretch of a saved array", path.string(), entry.name, entry.dtype_name);
      saved.arrays[entry.name.substr(0, at)].push_back({{begin, begin + entry.shape[0]}, {file, entry.offset, *dtype}});
    }
  }
  for (auto& [name, stretches] : saved.arrays)
    std::ranges::sort(stretches, {}, [](const SavedState::Stretch& s) { return s.span.begin; });
  return saved;
}

void lower_restore(const JobContext& job, ProgramId program, const SavedState& saved) {
  Emitter e(job.set, program, job.facts);
  std::vector<Incoming> incoming;
  for (const Kept& kept : kept_arrays(job)) {
    const Operand stored = slice(*kept.held, kept.span);
    const Span values = values_of(kept);
    int64_t next = values.begin;  // what stands before it was found
    const auto found = saved.arrays.find(kept.name);
    if (found != saved.arrays.end())
      for (const auto& [stretch, place] : found->second) {
        const Span wanted = intersection(stretch, {next, values.end});
        if (wanted.count() == 0 || wanted.begin != next || place.dtype != stored.dtype) continue;
        TensorPlace from = place;
        from.offset += static_cast<uint64_t>(wanted.begin - stretch.begin) * element_bytes(place.dtype);
        incoming.push_back(stored_as(e, {slice(stored, values.begin, wanted)}, from));
        next = wanted.end;
      }
    if (next != values.end)
      user_error("{}: found no {} '{}' from element {} on; resume with the options of the run's job.yaml",
                 saved.files[0].parent_path().string(), snug::name(stored.dtype), kept.name, next);
  }
  e.scope("files");
  lower_reads(e, incoming, saved.file_bytes, range_bytes(saved.file_bytes, job.topology().ranks));
  share_trained(job, e);
  let_staging_overlap(e.program());
}

}  // namespace snug
