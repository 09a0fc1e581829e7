#include "train/initial_rows.h"

#include <algorithm>
#include <functional>

#include "base/file.h"
#include "plan/spec/initial_file.h"
#include "train/tensor_rows.h"

namespace snug {
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
    const int64_t columns = spec.table.params[id].shape.cols();
    const TensorRows model(spec.sources.files[static_cast<size_t>(base.file)], base.offset, base.dtype, columns);
    for (const NewRow& row : rows.rows) {
      std::vector<double> sums(static_cast<size_t>(columns));
      for (const int32_t token : row.mean_of)
        std::ranges::transform(sums, model.read(token, 1), sums.begin(), std::plus<double>());
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
