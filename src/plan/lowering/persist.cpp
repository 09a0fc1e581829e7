#include "plan/lowering/persist.h"

#include <algorithm>
#include <charconv>

#include "base/rounding.h"
#include "plan/lowering/load.h"

namespace snug {
namespace {

// Gathers what every rank has restored, so that all have all that they hold.
void allgather_trained(const JobContext& job, Emitter& e) {
  for (int g = 0; g < job.table.group_count(); g++) {
    e.scope(fmt::format("group.{}.allgather", g));
    const int64_t elements = job.layout().segment(g, SegmentKind::Trained).elements;
    for (const Array& array : job.storage.weights(g, SegmentKind::Trained)) allgather(job, e, array.sharded, elements);
    for (const Array& state : job.storage.states(g)) allgather(job, e, state.sharded, elements);
  }
}

// What a rank owns of one array of one run: a transfer. Files know it by parameters, as a fusion would rename runs.
struct SavedArray {
  struct Values {
    std::string name;  // "<parameter>.<array>"
    Span span;         // of the parameter's values in the array
  };
  Operand stored;
  std::vector<Values> values;  // in the order in which `stored` holds them
};

// A value that stands for a block of elements is the parameter's in which the block begins; parts and runs begin with
// blocks.
SavedArray saved_array(const JobContext& job, const Layout::Run& run, const Span& owned, const ShardedArray& array,
                       std::string_view array_name) {
  const auto blocks = [&](int64_t element) { return ceil_div(element, array.block); };
  SavedArray result{slice(array, owned), {}};
  for (ParamId id = run.first; id < run.first + run.count; id++) {
    const Span param = job.layout().span(id);
    const int64_t first = blocks(param.begin);
    const Span values = intersection({first, blocks(param.end)}, {blocks(owned.begin), blocks(owned.end)});
    if (values.count() > 0)
      result.values.push_back(
          {fmt::format("{}.{}", job.table[id].name, array_name), {values.begin - first, values.end - first}});
  }
  return result;
}

// Returns a group's arrays under the names that files have for them. Where a run makes an average, weights hold that
// when they are saved, and y is saved too (`writes`); what is restored is y.
std::vector<Array> named_arrays(const JobContext& job, int group, bool writes) {
  std::vector<Array> arrays{{"value", job.storage.values(group, SegmentKind::Trained)}};
  arrays.insert(arrays.end(), job.storage.states(group).begin(), job.storage.states(group).end());
  const std::vector<Array>& points = job.storage.training_points(group);
  if (writes)
    arrays.insert(arrays.end(), points.begin(), points.end());
  else
    for (size_t i = 0; i < points.size(); i++) arrays[i].name = points[i].name;
  return arrays;
}

std::vector<SavedArray> saved_arrays(const JobContext& job, bool writes) {
  std::vector<SavedArray> all;
  for (int g = 0; g < job.table.group_count(); g++) {
    const Layout::Segment& segment = job.layout().segment(g, SegmentKind::Trained);
    for (const Layout::Run& run : segment.runs)
      for (const Array& array : named_arrays(job, g, writes)) {
        if (!array.sharded.of_run(run.span)) continue;
        // What is of one run every rank restores whole, as nobody gathers it.
        const bool whole = array.sharded.only && !writes;
        const Span kept = whole ? run.span : intersection(run.span, job.layout().part(segment.elements));
        if (kept.count() > 0) all.push_back(saved_array(job, run, kept, array.sharded, array.name));
      }
  }
  return all;
}

// Returns what every rank has all of, and the first one saves: what trained norms of rows began with, as they are saved
// as what has changed, and what the optimizer keeps of matrices.
std::vector<SavedArray> saved_by_first(const JobContext& job) {
  std::vector<SavedArray> all;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const auto id = static_cast<ParamId>(i);
    const auto add = [&](std::string_view name, const Operand& values) {
      all.push_back({values, {{fmt::format("{}.{}", job.table[id].name, name), {0, values.shape.count()}}}});
    };
    if (job.table[id].constant && job.table[id].name.ends_with(kInitial)) add("value", job.storage.constant(id));
    for (const MatrixState& state : job.storage.matrix_states(id)) add(state.name, state.used());
  }
  return all;
}

// Returns what a rank saves.
std::vector<SavedArray> saved_here(const JobContext& job) {
  std::vector<SavedArray> all = saved_arrays(job, true);
  if (job.topology().rank == 0) std::ranges::move(saved_by_first(job), std::back_inserter(all));
  return all;
}

// Returns what a rank restores.
std::vector<SavedArray> restored_here(const JobContext& job) {
  std::vector<SavedArray> all = saved_arrays(job, false);
  std::ranges::move(saved_by_first(job), std::back_inserter(all));
  return all;
}

void sort_stretches(SavedState& saved) {
  for (auto& [name, stretches] : saved.arrays)
    std::ranges::sort(stretches, {}, [](const SavedState::Stretch& s) { return s.span.begin; });
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
  std::vector<size_t> first;  // by transfer: its first tensor, which the others follow
  Output output;
  for (const SavedArray& array : saved_here(job)) {
    const DType dtype = array.stored.dtype;
    first.push_back(tensors.size());
    output.transfers.push_back({{array.stored}, {0, 0, dtype}});
    for (const SavedArray::Values& values : array.values)
      tensors.push_back({fmt::format("{}@{}", values.name, values.span.begin), dtype, {values.span.count()}});
  }
  output.files.names = {state_file_name(job.topology().rank, job.topology().ranks)};
  output.files.layouts = {layout_safetensors(tensors)};
  for (size_t i = 0; i < first.size(); i++) output.transfers[i].place.offset = output.files.layouts[0].offset[first[i]];
  return output;
}

SavedState assumed_saved_state(const JobContext& job) {
  const Output output = state_output(job);
  SavedState saved;
  saved.files = {output.files.names[0]};
  saved.file_bytes = {output.files.layouts[0].file_bytes};
  size_t next = 0;
  for (const SavedArray& array : saved_here(job)) {
    TensorPlace place = output.transfers[next++].place;
    for (const SavedArray::Values& values : array.values) {
      saved.arrays[values.name].push_back({values.span, place});
      place.offset += static_cast<uint64_t>(values.span.count()) * element_bytes(place.dtype);
    }
  }
  // What stands in other ranks' files, which this one reads too, is taken to stand behind its own.
  for (const SavedArray& array : restored_here(job))
    for (const SavedArray::Values& values : array.values) {
      std::vector<SavedState::Stretch>& stretches = saved.arrays[values.name];
      const Span &all = values.span, own = stretches.empty() ? Span{all.end, all.end} : stretches[0].span;
      for (const Span& lacking : {Span{all.begin, own.begin}, Span{own.end, all.end}}) {
        if (lacking.count() == 0) continue;
        const DType dtype = array.stored.dtype;
        stretches.push_back({lacking, {0, saved.file_bytes[0], dtype}});
        saved.file_bytes[0] += static_cast<uint64_t>(lacking.count()) * element_bytes(dtype);
      }
    }
  sort_stretches(saved);
  return saved;
}

bool restores_of_others(const ParamTable& table, const Numerics& numerics) {
  return updates_matrices(numerics.optimizer) || std::ranges::any_of(table.params, [](const ParamSpec& param) {
           return param.constant && param.name.ends_with(kInitial);
         });
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
  sort_stretches(saved);
  return saved;
}

namespace {

// Says where an array's values [begin, end) lie in a file.
struct FileRange {
  Span values;
  TensorPlace place;
};

// Adds where a parameter's values lie, which are an array's from `at` on; joins what continues in the file, so that it
// is read as it was written.
void append_ranges(std::vector<FileRange>& all, int64_t at, const SavedArray::Values& values, DType dtype,
                   const SavedState& saved) {
  int64_t next = values.span.begin;  // values before it were found
  const auto found = saved.arrays.find(values.name);
  if (found != saved.arrays.end())
    for (const auto& [stretch, place] : found->second) {
      const Span wanted = intersection(stretch, {next, values.span.end});
      if (wanted.count() == 0 || wanted.begin != next || place.dtype != dtype) continue;
      TensorPlace from = place;
      from.offset += static_cast<uint64_t>(wanted.begin - stretch.begin) * element_bytes(dtype);
      const int64_t begin = at + wanted.begin - values.span.begin;
      const auto continues = [&](const FileRange& last) {
        const uint64_t bytes = static_cast<uint64_t>(last.values.count()) * element_bytes(dtype);
        return last.place.file == from.file && last.place.offset + bytes == from.offset;
      };
      if (!all.empty() && continues(all.back()))
        all.back().values.end += wanted.count();
      else
        all.push_back({{begin, begin + wanted.count()}, from});
      next = wanted.end;
    }
  if (next != values.span.end)
    user_error("{}: found no {} '{}' from element {} on; resume with the options of the run's job.yaml",
               saved.files[0].parent_path().string(), snug::name(dtype), values.name, next);
}

}  // namespace

void lower_restore(const JobContext& job, ProgramId program, const SavedState& saved) {
  Emitter e(job.set, program, job.facts);
  std::vector<TensorRead> reads;
  for (const SavedArray& array : restored_here(job)) {
    std::vector<FileRange> all;
    int64_t at = 0;
    for (const SavedArray::Values& values : array.values) {
      append_ranges(all, at, values, array.stored.dtype, saved);
      at += values.span.count();
    }
    for (const FileRange& found : all)
      reads.push_back(stored_as(e, {elements(array.stored, found.values.begin, found.values.end)}, found.place));
  }
  e.scope("files");
  lower_reads(e, reads, saved.file_bytes, range_bytes(saved.file_bytes, job.topology().ranks));
  allgather_trained(job, e);
  let_staging_overlap(e.program());
}

}  // namespace snug
