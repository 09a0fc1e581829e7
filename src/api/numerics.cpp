#include "api/numerics.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "api/import.h"
#include "base/error.h"
#include "base/option_name.h"
#include "model/hidden_matrices.h"
#include "plan/lowering/orthogonalize.h"
#include "tensor/codebook.h"

namespace snug {
namespace {

DType dtype_option(const std::string& word) { return word == "fp32" ? DType::F32 : DType::BF16; }

// Returns the format for a word of base_format; Plain for bf16 and fp32.
BaseFormat format_option(std::string_view word) {
  for (const BaseFormat format : {BaseFormat::Int8, BaseFormat::Nf4, BaseFormat::Fp8})
    if (word == name(format)) return format;
  return BaseFormat::Plain;
}

// Chooses the base's format. A model that is stored quantised stays so. `frozen` says that its linears are not trained.
void choose_base(Numerics& n, const JobConfig& options, const WeightSources& sources, bool frozen) {
  const bool plain = sources.format == BaseFormat::Plain;
  n.base_format = options.base_format                 ? format_option(*options.base_format)
                  : plain && frozen && n.fp8_products ? BaseFormat::Fp8
                                                      : sources.format;
  n.base = options.base_format && !n.quantized_base() ? dtype_option(*options.base_format) : n.compute;
  n.plain_scales = sources.plain_scales;
  if (!plain && n.base_format != sources.format)
    user_error("base_format: found {}, expected {}, the form in which {} holds its linears", *options.base_format,
               name(sources.format), options.model);
  if (n.fp8_products && frozen && n.base_format != BaseFormat::Fp8)
    user_error("compute fp8: found base_format {}, expected fp8, which its products are made of",
               options.base_format.value_or(std::string(name(n.base_format))));
}

// Stores a merged model as its base is, unless base_format says how.
void keep_base_exact(JobSpec& spec, const JobConfig& options) {
  Numerics& n = spec.numerics;
  if (options.base_format && !n.quantized_base()) spec.export_dtype = dtype_option(*options.base_format);
  n.base = DType::F32;  // for what does not stay in its file
  if (spec.sources.format != BaseFormat::Plain)
    spec.sources.notes.push_back(fmt::format("{}: linears are stored in {}; they are merged, and written, in {}",
                                             options.model, name(spec.sources.format), name(n.compute)));
}

// Adds a line for each dtype of which something is kept with fewer bits than it is stored with.
void note_narrowed(JobSpec& spec) {
  const Numerics& n = spec.numerics;
  const std::vector<Form> forms = forms_of(spec);
  for (const auto& [dtype, bits] : {std::pair(DType::F16, 3), std::pair(DType::F32, 16)}) {
    std::vector<std::string> narrowed;
    size_t all = 0;
    bool trained = false;
    for (size_t i = 0; i < forms.size(); i++) {
      const ParamSpec& param = spec.table.params[i];
      all += !param.adapter;
      const bool exact = param.trainable ? n.split_master() || n.compute == DType::F32 : n.base == DType::F32;
      if (param.adapter || spec.sources.dtypes[i] != dtype || forms[i] != Form::Plain || exact) continue;
      narrowed.push_back(param.name);
      trained = trained || param.trainable;
    }
    if (narrowed.empty()) continue;
    spec.sources.notes.push_back(fmt::format(
        "{} stored in {}, and kept in bf16, {} bits of mantissa less{}",
        narrowed.size() == all ? "weights are"
                               : fmt::format("{} of {} tensors ('{}') are", narrowed.size(), all, narrowed[0]),
        name(dtype), bits,
        trained          ? "; " + option_name("state_format") + " fp32 keeps them as they are"
        : n.fp8_products ? ""
                         : "; " + option_name("compute") + " fp32 keeps them as they are"));
  }
}

// Returns half the largest distance between neighbours of a codebook of numbers up to 1, which is what rounding to it
// may change, rounded up to four digits behind the point.
template <size_t N>
double largest_error(const std::array<float, N>& book) {
  double widest = 0;
  for (size_t i = 0; i + 1 < N; i++) widest = std::max(widest, static_cast<double>(book[i + 1] - book[i]));
  return std::ceil(widest / 2 * 1e4) / 1e4;
}

// Says how far a format's number may lie from the one that it stands for: half the distance between neighbours.
std::string difference_text(BaseFormat format) {
  constexpr int kInt8Codes = 127;
  constexpr float kFp8Subnormal = 0x1p-9f;
  switch (format) {
    case BaseFormat::Int8:
      return fmt::format("a number differs by at most 1 in {} of the largest in its row", 2 * kInt8Codes);
    case BaseFormat::Fp8:
      return fmt::format("a number differs by at most 1 in 16 of itself, or 1 in {} of the largest in its row",
                         static_cast<int>(2 * kFp8Largest / kFp8Subnormal));
    case BaseFormat::Nf4:
      return fmt::format(
          "a number differs by at most {} of the largest of its {}, whose scale differs by at most {} of how "
          "far "
          "scales lie from their mean",
          largest_error(kNf4Codebook), kNf4Block, largest_error(kSignedMap));
    case BaseFormat::Plain:
      break;
  }
  internal_error("a plain base differs by nothing");
}

// Adds a line on what is quantised as it is read. Values of an imported model have been rounded to bf16 before.
void note_quantized(JobSpec& spec, const JobConfig& options) {
  if (!spec.numerics.quantized_base() || spec.sources.format != BaseFormat::Plain) return;
  const std::vector<Form> forms = forms_of(spec);
  std::vector<std::string> quantized;
  std::set<std::string> stored;
  size_t all = 0;
  for (size_t i = 0; i < forms.size(); i++) {
    const ParamSpec& param = spec.table.params[i];
    all += !param.adapter;
    if (param.adapter || forms[i] != Form::Quantized) continue;
    quantized.push_back(param.name);
    if (const auto& dtype = spec.sources.dtypes[i]) stored.insert(std::string(name(*dtype)));
  }
  if (quantized.empty() || stored.empty()) return;
  const std::string form = options.found.given_model.empty() ? "" : imported_form(options.found.given_model);
  spec.sources.notes.push_back(fmt::format(
      "{} of {} tensors ('{}') are stored in {}{}, and kept in {}: {}", quantized.size(), all, quantized[0],
      fmt::join(stored, " and "),
      form.empty()
          ? ""
          : fmt::format(", to which {} in {} was rounded, by 1 in 512 at most", options.found.given_model, form),
      name(spec.numerics.base_format), difference_text(spec.numerics.base_format)));
}

// Requires parameters that can be quantized: whole rows, or whole blocks.
void require_quantizable(const JobSpec& spec) {
  const std::vector<Form> forms = forms_of(spec);
  for (size_t i = 0; i < forms.size(); i++) {
    const ParamSpec& param = spec.table.params[i];
    if (spec.numerics.base_format == BaseFormat::Nf4 && forms[i] == Form::Quantized &&
        param.shape.count() % kNf4Block != 0)
      user_error("base_format nf4: '{}' has {} elements, expected a multiple of {}; int8 takes any", param.name,
                 param.shape.count(), kNf4Block);
  }
  for (const ParamSpec& param : spec.table.params)
    if (spec.numerics.fp8_products && param.linear &&
        (param.shape.rows() % kFp8Multiple != 0 || param.shape.cols() % kFp8Multiple != 0))
      user_error("compute fp8: '{}' is {}, expected multiples of {}; bf16 takes any", param.name,
                 to_string(param.shape), kFp8Multiple);
}

// Refuses what is said of AdamW's moments, which Adafactor has not.
void refuse_moments(const JobConfig& options) {
  const auto refuse = [](const char* key, double found) {
    user_error(
        "{}: found {}, expected nothing: adafactor has no first moment, and keeps squares by 1 - step^-0.8 ({} "
        "adamw has moments)",
        key, found, option_name("optimizer"));
  };
  const JobConfig defaults;
  if (options.beta1 != defaults.beta1) refuse("beta1", options.beta1);
  if (options.beta2) refuse("beta2", *options.beta2);
  if (options.epsilon != defaults.epsilon) refuse("epsilon", options.epsilon);
}

// Requires that what is asked for is there for the optimizer.
void require_options_of_optimizer(const Numerics& n, const JobConfig& options) {
  if (n.optimizer == Optimizer::AdamW) return;
  if (n.state != StateFormat::Fp32)
    user_error("state_format: found {}, expected fp32: {} keeps its states in fp32 ({} adamw has formats)",
               options.state_format, options.optimizer, option_name("optimizer"));
  if (n.optimizer == Optimizer::Lion && options.epsilon != JobConfig().epsilon)
    user_error("epsilon: found {}, expected nothing: lion divides by nothing ({} adamw does)", options.epsilon,
               option_name("optimizer"));
  if (n.optimizer == Optimizer::Adafactor) refuse_moments(options);
  if (n.optimizer != Optimizer::ScheduleFreeAdamW) return;
  if (n.beta1 == 0)
    user_error("beta1: found 0, expected a number above it: schedule_free_adamw divides by it; adamw takes 0");
  if (options.objective == "kto")
    user_error(
        "optimizer: found schedule_free_adamw, expected adamw or lion: kto scores replies before each step, by the "
        "weights that are trained, and what is evaluated of schedule-free training is their average");
}

}  // namespace

Numerics numerics_of(const JobConfig& options) {
  Numerics n;
  n.compute = dtype_option(options.compute);
  n.fp8_products = options.compute == "fp8";
  n.accumulator = dtype_option(options.gradient_accumulator);
  n.beta1 = options.beta1;
  n.optimizer = optimizer_from_name(options.optimizer);
  n.beta2 = options.beta2.value_or(n.optimizer == Optimizer::Lion ? 0.99 : 0.999);
  n.epsilon = options.epsilon;
  n.weight_decay = options.weight_decay;
  n.max_grad_norm = static_cast<float>(options.max_grad_norm);
  n.seed = options.seed;
  n.neftune_alpha = options.neftune_noise_alpha;
  if (n.optimizer == Optimizer::Apollo) {
    n.apollo_rank = options.apollo_rank;
    n.apollo_update_interval = options.apollo_update_interval;
    n.apollo_scale = options.apollo_scale;
    n.apollo_scale_type = options.apollo_scale_type == "channel" ? ScaleType::Channel : ScaleType::Tensor;
  }
  n.reduce_once_per_step = options.reduce_every == "step";
  n.state = options.state_format == "8bit"   ? StateFormat::Bit8
            : options.state_format == "bf16" ? StateFormat::Bf16
                                             : StateFormat::Fp32;
  require_options_of_optimizer(n, options);
  if (n.state == StateFormat::Bit8 && n.compute != DType::BF16)
    user_error("state_format 8bit keeps weights in bf16 alone: found compute {}, expected bf16", options.compute);
  return n;
}

void resolve_base(JobSpec& spec, const JobConfig& options) {
  const auto& params = spec.table.params;
  const bool training = spec.purpose == Purpose::Train;
  const bool all_trained = training && std::ranges::all_of(params, &ParamSpec::trainable);
  const auto is_trained_linear = [](const ParamSpec& param) { return param.linear && param.trainable; };
  choose_base(spec.numerics, options, spec.sources, !all_trained);
  if (spec.purpose == Purpose::Merge) keep_base_exact(spec, options);
  note_narrowed(spec);
  note_quantized(spec, options);
  if (spec.numerics.fp8_products && training && std::ranges::any_of(params, is_trained_linear) &&
      options.sequence_length % kFp8Multiple != 0)
    user_error(
        "compute fp8: sequence_length: found {}, expected a multiple of {}, as weights' gradients are sums over "
        "tokens; bf16 takes any",
        options.sequence_length, kFp8Multiple);
  if (spec.numerics.quantized_base() && all_trained)
    user_error("base_format {} is for weights that are not trained: found {} full, expected lora",
               name(spec.numerics.base_format), option_name("method"));
  if (all_trained && spec.numerics.base != spec.numerics.compute)
    user_error("base_format: found {}, expected nothing: {} full trains all weights, in the form of compute, {}",
               name(spec.numerics.base), option_name("method"), name(spec.numerics.compute));
  for (size_t i = 0; i < params.size(); i++)
    if (training && is_trained_linear(params[i]) && std::holds_alternative<QuantizedSource>(spec.sources.params[i]))
      user_error("{}: holds '{}' in {}, which is not trained: expected adapters of it ({} lora)", options.model,
                 params[i].name, name(spec.sources.format), option_name("method"));
  require_quantizable(spec);
}

void note_matrices(JobSpec& spec) {
  const Numerics& n = spec.numerics;
  if (n.optimizer != Optimizer::Muon && n.optimizer != Optimizer::Apollo) return;
  const std::vector<bool> updated = trained_hidden_matrices(spec.table);
  std::vector<Shape> matrices;
  for (size_t i = 0; i < updated.size(); i++)
    if (updated[i]) matrices.push_back(spec.table.params[i].shape);
  const auto note = [&](const std::string& text) { spec.sources.notes.push_back(text); };
  if (matrices.empty())
    return note(
        fmt::format("{} has no matrix of layers, or of adapters, to update: adamw does all", name(n.optimizer)));
  if (n.optimizer == Optimizer::Muon) {
    double flops = 0;
    for (const Shape& matrix : matrices) flops += orthogonalize_flops(matrix);
    return note(fmt::format(
        "muon orthogonalises {} matrices in every step, by products of {:.3g} TFLOP in all; all else has adamw",
        matrices.size(), flops / 1e12));
  }
  const auto narrow =
      std::ranges::count_if(matrices, [&](const Shape& matrix) { return n.projected_to(matrix) < n.apollo_rank; });
  note(fmt::format(
      "apollo scales {} matrices by their gradients' projections to {} numbers a row or column{}; all else has adamw",
      matrices.size(), n.apollo_rank,
      narrow == 0 ? "" : fmt::format(", of {} to as many as their smaller side has, which is less", narrow)));
}

}  // namespace snug
