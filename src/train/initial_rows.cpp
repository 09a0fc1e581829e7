#include "train/initial_rows.h"

#include "base/file.h"
#include "format/load.h"
#include "plan/spec/initial_file.h"

namespace snug {
namespace {

// Adds a row of a matrix, which begins at `place`, to the sums.
void add_row(const File& file, const TensorPlace& place, int64_t row, std::vector<double>& sums) {
  const uint64_t size = element_bytes(place.dtype);
  std::vector<std::byte> bytes(sums.size() * size);
  file.read(place.offset + static_cast<uint64_t>(row) * bytes.size(), bytes);
  dispatch_float(place.dtype, [&]<class T>() {
    for (size_t i = 0; i < sums.size(); i++)
      sums[i] += static_cast<double>(static_cast<float>(load<T>(bytes.data() + i * size)));
  });
}

}  // namespace

void write_initial_rows(const JobSpec& spec, const std::filesystem::path& file) {
  const NewRows& rows = spec.sources.new_rows;
  const InitialFile layout = rows_file(spec.table, std::ssize(rows.rows));
  std::filesystem::create_directories(file.parent_path());
  PendingFile pending(file, IoMode::Buffered);
  File& out = pending.file();
  out.resize(layout.layout.file_bytes);
  out.write(0, std::as_bytes(std::span(layout.layout.header)));
  for (size_t id = 0; id < layout.tensor_of.size(); id++) {
    if (layout.tensor_of[id] < 0) continue;
    uint64_t offset = layout.layout.offset[static_cast<size_t>(layout.tensor_of[id])];
    // The first of its ranges begins with row 0: no new token comes before all others.
    const TensorPlace& base = std::get<RangedSource>(spec.sources.params[id]).front().place;
    const File model = File::open_read(spec.sources.files[static_cast<size_t>(base.file)], IoMode::Buffered);
    for (const NewRow& row : rows.rows) {
      std::vector<double> sums(static_cast<size_t>(spec.table.params[id].shape.cols()));
      for (const int32_t token : row.mean_of) add_row(model, base, token, sums);
      std::vector<float> means;
      for (const double sum : sums) means.push_back(static_cast<float>(sum / static_cast<double>(row.mean_of.size())));
      out.write(offset, std::as_bytes(std::span<const float>(means)));
      offset += means.size() * sizeof(float);
    }
  }
  out.sync();
  pending.publish();
}

}  // namespace snug
