#include "train/step_objective.h"

#include <algorithm>

#include "base/error.h"
#include "train/distill_objective.h"
#include "train/kto_objective.h"
#include "train/pair_objective.h"
#include "train/reward_objective.h"

namespace snug {

StepObjective::StepObjective(const ObjectiveOptions& options, const Dataset& dataset, const BlockStream& stream,
                             References* references)
    : options_(options), dataset_(dataset), stream_(stream), references_(references) {
  check(!options.has_reference() || references, "the objective {} without references", name(options.kind));
}

bool StepObjective::scores_others() const { return options_.scores_others() && dataset_.has_pairs(); }

std::vector<Half> StepObjective::parts() const {
  return scores_others() ? std::vector{Half::Second, Half::First} : std::vector{Half::Both};
}

std::vector<std::string> StepObjective::metric_names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics()) names.push_back(name);
  return names;
}

std::vector<StepObjective::Scored> StepObjective::scored(int64_t pass, Half part, const TensorView& losses) const {
  const StepShape& shape = stream_.shape();
  const auto all_rows = static_cast<size_t>(losses.count() / shape.ranks);
  const size_t rows = options_.has_teacher() ? all_rows / 3 : all_rows;
  std::vector<Scored> all;
  for (int64_t rank = 0; rank < shape.ranks; rank++) {
    const std::span<const float> own(losses.as<float>() + static_cast<size_t>(rank) * all_rows, all_rows);
    size_t row = 0;
    for (int64_t i = 0; i < shape.micro_batch; i++)
      for_each_of(stream_.block(pass, rank, i), part, [&](const DocumentSpan& span) {
        Scored& document = all.emplace_back();
        document.span = span;
        document.rank = static_cast<int>(rank);
        document.row = row;
        document.reply.tokens = options_.scores() ? 1 : counted_labels(dataset_, span);
        for (int64_t t = 0; t < document.reply.tokens; t++, row++) {
          document.reply.log_probability -= static_cast<double>(own[row]);
          if (!options_.has_teacher()) continue;
          document.divergence += static_cast<double>(own[rows + row]);
          document.agreements += static_cast<double>(own[2 * rows + row]);
        }
        if (references_) document.reply.reference = references_->of(span.sample)[half_of(dataset_, span)];
      });
  }
  return all;
}

void StepObjective::add(int64_t pass, const TensorView& losses) {
  const std::vector<Scored> documents = scored(pass, learnt(), losses);
  judge(documents);
  if (whole_) whole_->judge(documents);
}

void StepObjective::add_others(int64_t pass, const TensorView& losses) {
  if (!scores_others()) return;
  const std::vector<Scored> documents = scored(pass, Half::Second, losses);
  judge_others(documents);
  if (whole_) whole_->judge_others(documents);
}

void StepObjective::weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights,
                          std::span<float> row_losses) {
  std::ranges::fill(weights, 0.0f);
  std::ranges::fill(row_losses, 0.0f);
  const float* const own = losses.as<float>() + static_cast<size_t>(rank) * weights.size();
  const std::vector<Scored> documents = scored(pass, learnt(), losses);
  const std::vector<Weight> weighed = judge(documents);
  for (size_t d = 0; d < documents.size(); d++) {
    if (documents[d].rank != rank) continue;
    const size_t first = documents[d].row, end = first + static_cast<size_t>(documents[d].reply.tokens);
    if (first < end) row_losses[first] = static_cast<float>(weighed[d].loss);
    for (size_t row = first; row < end; row++) {
      weights[row] = static_cast<float>(weighed[d].row);
      if (weighed[d].cross_entropy != 0)
        row_losses[row] += static_cast<float>(weighed[d].cross_entropy * static_cast<double>(own[row]));
    }
  }
}

void StepObjective::take_references(int64_t pass, Half part, const TensorView& losses) {
  for (const Scored& document : scored(pass, part, losses))
    references_->set(document.span.sample, half_of(dataset_, document.span), document.reply.log_probability);
}

bool StepObjective::knows(int64_t pass) const {
  const StepShape& shape = stream_.shape();
  for (int64_t rank = 0; rank < shape.ranks; rank++)
    for (int64_t i = 0; i < shape.micro_batch; i++)
      for (const DocumentSpan& span : stream_.block(pass, rank, i))
        if (!references_->knows(span.sample)) return false;
  return true;
}

bool StepObjective::knows_all() const {
  return std::ranges::all_of(stream_.samples_of_data(), [this](uint32_t sample) { return references_->knows(sample); });
}

int64_t StepObjective::known() const {
  return std::ranges::count_if(stream_.samples_of_data(),
                               [this](uint32_t sample) { return references_->knows(sample); });
}

std::unique_ptr<StepObjective> make_step_objective(const ObjectiveOptions& options, const Dataset& dataset,
                                                   const BlockStream& stream, References* references) {
  if (options.has_teacher()) return std::make_unique<DistillObjective>(options, dataset, stream, references);
  if (options.scores()) return std::make_unique<RewardObjective>(options, dataset, stream, references);
  if (options.pairs()) return std::make_unique<PairObjective>(options, dataset, stream, references);
  check(options.kind == ObjectiveKind::Kto, "no step's objective is {}", name(options.kind));
  return std::make_unique<KtoObjective>(options, dataset, stream, references);
}

}  // namespace snug
