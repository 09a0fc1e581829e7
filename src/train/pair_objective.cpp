#include "train/pair_objective.h"

#include <algorithm>

#include "base/error.h"

namespace snug {
namespace {

// Returns how many of a document's tokens have a label that counts.
int64_t loss_tokens(const Dataset& dataset, const DocumentSpan& span) {
  return dataset.loss_tokens(span.sample, int64_t{span.begin} + 1, int64_t{span.begin} + span.length);
}

}  // namespace

PairObjective::PairObjective(const ObjectiveOptions& options, const Dataset& dataset, const BlockStream& stream,
                             References* references)
    : options_(options), dataset_(dataset), stream_(stream), references_(references) {
  check(!options.has_reference() || references, "the objective {} without references", name(options.kind));
}

// Calls visit(rank, first row, chosen, rejected, sample) for each pair of a pass: rows of the chosen reply begin at
// that row of the rank's, and those of the rejected one follow.
template <class Visit>
void PairObjective::for_each_pair(int64_t pass, const TensorView& losses, const Visit& visit) const {
  const StepShape& shape = stream_.shape();
  const auto rows = static_cast<size_t>(losses.count() / shape.ranks);
  for (int64_t rank = 0; rank < shape.ranks; rank++) {
    const std::span<const float> own(losses.as<float>() + static_cast<size_t>(rank) * rows, rows);
    size_t row = 0;
    for (int64_t i = 0; i < shape.micro_batch; i++) {
      const std::span<const DocumentSpan> block = stream_.block(pass, rank, i);
      for (size_t d = 0; d + 1 < block.size(); d += 2) {
        const size_t first = row;
        const auto score = [&](const DocumentSpan& span) {
          ScoredReply reply;
          reply.tokens = loss_tokens(dataset_, span);
          for (int64_t t = 0; t < reply.tokens; t++) reply.log_probability -= static_cast<double>(own[row++]);
          return reply;
        };
        const ScoredReply chosen = score(block[d]), rejected = score(block[d + 1]);
        visit(static_cast<int>(rank), first, chosen, rejected, block[d].sample);
      }
    }
  }
}

const PairObjective::Scored& PairObjective::add(uint32_t sample, ScoredReply chosen, ScoredReply rejected) {
  if (options_.has_reference()) {
    check(references_->knows(sample), "sample {} without a reference", sample);
    chosen.reference = references_->of(sample)[0];
    rejected.reference = references_->of(sample)[1];
  }
  return pairs_.emplace_back(chosen, rejected, pair_loss(options_, chosen, rejected));
}

void PairObjective::add(int64_t pass, const TensorView& losses) {
  for_each_pair(pass, losses,
                [&](int, size_t, const ScoredReply& chosen, const ScoredReply& rejected, uint32_t sample) {
                  add(sample, chosen, rejected);
                });
}

void PairObjective::weigh(int64_t pass, int rank, const TensorView& losses, std::span<float> weights,
                          std::span<float> row_losses) {
  std::ranges::fill(weights, 0.0f);
  std::ranges::fill(row_losses, 0.0f);
  // The step divides by its pairs, the cross-entropy by its chosen replies' tokens.
  const double of_tokens = options_.nll_weight * static_cast<double>(stream_.pairs()) /
                           static_cast<double>(std::max<int64_t>(stream_.first_loss_tokens(), 1));
  const float* const own = losses.as<float>() + static_cast<size_t>(rank) * weights.size();
  for_each_pair(pass, losses,
                [&](int of_rank, size_t row, const ScoredReply& chosen, const ScoredReply& rejected, uint32_t sample) {
                  const PairLoss loss = add(sample, chosen, rejected).loss;
                  if (of_rank != rank) return;
                  row_losses[row] = static_cast<float>(loss.loss);
                  for (int64_t t = 0; t < chosen.tokens; t++, row++) {
                    weights[row] = static_cast<float>(of_tokens - loss.by_chosen);
                    row_losses[row] += static_cast<float>(of_tokens * static_cast<double>(own[row]));
                  }
                  for (int64_t t = 0; t < rejected.tokens; t++, row++)
                    weights[row] = static_cast<float>(-loss.by_rejected);
                });
}

void PairObjective::take_references(int64_t pass, const TensorView& losses) {
  for_each_pair(pass, losses,
                [&](int, size_t, const ScoredReply& chosen, const ScoredReply& rejected, uint32_t sample) {
                  references_->set(sample, {chosen.log_probability, rejected.log_probability});
                });
}

bool PairObjective::knows(int64_t pass) const {
  const StepShape& shape = stream_.shape();
  for (int64_t rank = 0; rank < shape.ranks; rank++)
    for (int64_t i = 0; i < shape.micro_batch; i++)
      for (const DocumentSpan& span : stream_.block(pass, rank, i))
        if (!references_->knows(span.sample)) return false;
  return true;
}

bool PairObjective::knows_all() const {
  return std::ranges::all_of(stream_.pairs_of_data(),
                             [this](const auto& pair) { return references_->knows(pair[0].sample); });
}

double PairObjective::cross_entropy() const {
  double sum = 0, tokens = 0;
  for (const Scored& pair : pairs_) {
    sum -= pair.chosen.log_probability;
    tokens += static_cast<double>(pair.chosen.tokens);
  }
  return sum / tokens;
}

double PairObjective::loss() const {
  double sum = 0;
  for (const Scored& pair : pairs_) sum += pair.loss.loss;
  const double mean = sum / static_cast<double>(pairs_.size());
  return options_.nll_weight > 0 ? mean + options_.nll_weight * cross_entropy() : mean;
}

std::vector<std::string> PairObjective::metric_names() const {
  std::vector<std::string> names{"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                 "rewards/margins", "logps/chosen",     "logps/rejected"};
  if (options_.nll_weight > 0) names.emplace_back("nll_loss");
  if (options_.kind == ObjectiveKind::Orpo) {
    names.emplace_back("log_odds_ratio");
    names.emplace_back("log_odds_chosen");
  }
  return names;
}

NamedNumbers PairObjective::metrics() const {
  const auto mean = [&](const auto& of_pair) {
    double sum = 0;
    for (const Scored& pair : pairs_) sum += of_pair(pair.chosen, pair.rejected);
    return sum / static_cast<double>(pairs_.size());
  };
  const auto reward = [&](const ScoredReply& reply) { return reward_of(options_, reply); };
  const auto score = [&](const ScoredReply& reply) {
    return options_.has_reference() ? reply.log_probability : reply.mean();
  };
  using Reply = const ScoredReply&;
  std::vector<double> values{mean([&](Reply c, Reply) { return reward(c); }),
                             mean([&](Reply, Reply r) { return reward(r); }),
                             mean([&](Reply c, Reply r) { return reward(c) > reward(r) ? 1.0 : 0.0; }),
                             mean([&](Reply c, Reply r) { return reward(c) - reward(r); }),
                             mean([&](Reply c, Reply) { return score(c); }),
                             mean([&](Reply, Reply r) { return score(r); })};
  if (options_.nll_weight > 0) values.push_back(cross_entropy());
  if (options_.kind == ObjectiveKind::Orpo) {
    values.push_back(mean([&](Reply c, Reply r) { return log_sigmoid(log_odds_ratio(c, r)); }));
    values.push_back(mean([&](Reply c, Reply r) { return log_odds_ratio(c, r); }));
  }
  const std::vector<std::string> names = metric_names();
  NamedNumbers out;
  for (size_t i = 0; i < names.size(); i++) out.emplace_back(names[i], values[i]);
  return out;
}

}  // namespace snug
