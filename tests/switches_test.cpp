// A test that compares with transformers can fail: every switch of every tiny model, put back to what Llama has, moves
// gradients by far more than the parity test allows.
#include <gtest/gtest.h>

#include "tiny_families.h"
#include "tiny_model.h"

namespace snug {
namespace {

// The parity test's bound on a gradient is 1e-5.
constexpr double kLeastChange = 1e-3;

struct Mutant {
  std::string name;
  // Changes a job; returns whether that was another one before.
  std::function<bool(JobSpec&)> change;
};

// Sets members of the model.
template <class T>
std::function<bool(JobSpec&)> of_model(T ModelSpec::*member, T value) {
  return [=](JobSpec& job) { return std::exchange(job.model.*member, value) != value; };
}
template <class T>
std::function<bool(JobSpec&)> of_rope(T RopeParameters::*member, T value) {
  return [=](JobSpec& job) { return std::exchange(job.model.rope.*member, value) != value; };
}

// Sets members of its layers.
template <class T>
std::function<bool(JobSpec&)> of_layers(T LayerSpec::*member, T value) {
  return [=](JobSpec& job) {
    bool changed = false;
    for (LayerSpec& layer : job.model.layers) changed |= std::exchange(layer.*member, value) != value;
    return changed;
  };
}

// Takes a parameter away; returns whether it was there.
bool drop(JobSpec& job, ParamId& param) {
  const ParamId dropped = std::exchange(param, kNoParam);
  if (dropped != kNoParam) job.table.params[static_cast<size_t>(dropped)].trainable = false;
  return dropped != kNoParam;
}

// Takes norms away.
std::function<bool(JobSpec&)> without(std::vector<Norm LayerParams::*> norms) {
  return [=](JobSpec& job) {
    bool changed = false;
    for (LayerParams& layer : job.table.layers)
      for (Norm LayerParams::*const norm : norms) {
        for (ParamId id = (layer.*norm).gain + 1; id < (layer.*norm).gain + (layer.*norm).count; id++)
          job.table.params[static_cast<size_t>(id)].trainable = false;
        drop(job, (layer.*norm).bias);
        changed |= drop(job, (layer.*norm).gain);
      }
    return changed;
  };
}

// Changes every norm that there is.
std::function<bool(JobSpec&)> of_norms(const std::function<bool(JobSpec&, Norm&)>& change) {
  return [=](JobSpec& job) {
    bool changed = change(job, job.table.final_norm);
    for (LayerParams& layer : job.table.layers)
      for (Norm* norm : {&layer.attention_norm, &layer.mlp_norm, &layer.query_norm, &layer.key_norm,
                         &layer.attention_post_norm, &layer.mlp_post_norm})
        if (norm->gain != kNoParam) changed |= change(job, *norm);
    return changed;
  };
}

std::function<bool(JobSpec&)> without_bias(Linear LayerParams::*linear) {
  return [=](JobSpec& job) {
    bool changed = false;
    for (LayerParams& layer : job.table.layers) {
      const ParamId first = (layer.*linear).bias;
      for (int i = 0; first != kNoParam && i < (layer.*linear).count; i++)
        job.table.params[static_cast<size_t>(first + i)].trainable = false;
      changed |= drop(job, (layer.*linear).bias);
    }
    return changed;
  };
}

std::vector<Mutant> mutants() {
  return {
      {"embedding_factor", of_model(&ModelSpec::embedding_factor, 1.0)},
      {"logits_cap", of_model(&ModelSpec::logits_cap, 0.0)},
      {"logits_factor", of_model(&ModelSpec::logits_factor, 1.0)},
      {"rope.type", of_rope(&RopeParameters::type, RopeType::Default)},
      {"rope.theta", of_rope(&RopeParameters::theta, 777.0)},
      {"rope.dim", of_rope(&RopeParameters::dim, int64_t{2})},
      {"rope.query_growth", of_rope(&RopeParameters::query_growth, 0.0)},
      {"rope", of_layers(&LayerSpec::rope, true)},
      {"rope_interleaved", of_layers(&LayerSpec::rope_interleaved, false)},
      {"rope_before_norms", of_layers(&LayerSpec::rope_before_norms, false)},
      {"local_rope", of_layers(&LayerSpec::local_rope, false)},
      {"window", of_layers(&LayerSpec::window, int64_t{0})},
      {"attention_scale", of_layers(&LayerSpec::attention_scale, 0.0)},
      {"attention_cap", of_layers(&LayerSpec::attention_cap, 0.0)},
      {"residual_multiplier", of_layers(&LayerSpec::residual_multiplier, 1.0)},
      {"gate", of_layers(&LayerSpec::gate, Activation::Silu)},
      {"parallel", of_layers(&LayerSpec::parallel, false)},
      {"attention_norm", without({&LayerParams::attention_norm})},
      {"mlp_norm", without({&LayerParams::mlp_norm})},
      {"head_norms", without({&LayerParams::query_norm, &LayerParams::key_norm})},
      {"attention_post_norm", without({&LayerParams::attention_post_norm})},
      {"mlp_post_norm", without({&LayerParams::mlp_post_norm})},
      {"plus_one", of_norms([](JobSpec&, Norm& norm) { return std::exchange(norm.plus_one, false); })},
      {"kind", of_norms([](JobSpec& job, Norm& norm) {
         if (norm.gains > 1) return false;  // there is no such RMSNorm
         drop(job, norm.bias);
         return std::exchange(norm.kind, NormKind::Rms) != NormKind::Rms;
       })},
      {"gains", of_norms([](JobSpec& job, Norm& norm) {  // every head has the first one's
         for (int i = 1; i < norm.count; i++) job.table.params[static_cast<size_t>(norm.gain + i)].trainable = false;
         norm.gains = 1;
         return std::exchange(norm.count, 1) > 1;
       })},
      {"qkv.bias", without_bias(&LayerParams::qkv)},
      {"o.bias", without_bias(&LayerParams::o)},
      {"gate_up.bias", without_bias(&LayerParams::gate_up)},
      {"down.bias", without_bias(&LayerParams::down)},
  };
}

// Returns how far gradients of linears are from transformers', the largest of all, or nothing if the change leaves the
// job as it is.
std::optional<double> error_of(const std::string& family, const std::function<bool(JobSpec&)>& change) {
  const auto samples = tiny_samples();
  JobSpec spec = tiny_job(family, std::nullopt, DType::F32);
  if (!change(spec)) return std::nullopt;
  spec.cut.micro_batch = std::ssize(samples);
  TinySession session(spec, 1);
  session.load();
  TinyTrainer(session).passes(samples, 1, 0);
  const auto reference = read_tensors(models() / family / "reference.safetensors");
  double error = 0;
  for (size_t i = 0; i < spec.table.params.size(); i++)
    if (spec.table.params[i].linear)
      error = std::max(error, relative_error(values(session, session.compiled().owned[i].gradient),
                                             reference.at("grad." + spec.table.params[i].name)));
  return error;
}

// Gradients hardly show an epsilon, so it is compared with the config's. What norms take as a row, a head or all heads,
// is told by the shape of their gains.
TEST(Switches, EpsilonIsTheConfigs) {
  for (const std::string family : kTinyFamilies) {
    const nlohmann::json config = read_json(models() / family / "config.json"),
                         text = config.value("text_config", config);
    std::optional<double> epsilon;
    for (const auto& [key, value] : text.items())
      if (key.ends_with("_eps") || key.ends_with("_epsilon")) epsilon = value.get<double>();
    JobSpec spec = tiny_job(family, std::nullopt, DType::F32);
    of_norms([&](JobSpec&, Norm& norm) {
      EXPECT_EQ(norm.epsilon, epsilon) << family;
      return false;
    })(spec);
  }
}

TEST(Switches, EachOfEveryTinyModelMovesItsGradients) {
  std::map<std::string, int> found;
  for (const auto& folder : std::filesystem::directory_iterator(models())) {
    if (!std::filesystem::exists(folder.path() / "reference.json")) continue;
    const std::string family = folder.path().filename().string();
    EXPECT_LE(error_of(family, [](JobSpec&) { return true; }).value(), 1e-5) << family;
    for (const Mutant& mutant : mutants()) {
      const std::optional<double> error = error_of(family, mutant.change);
      if (!error) continue;
      found[mutant.name]++;
      EXPECT_GE(*error, kLeastChange) << family << " with another " << mutant.name;
    }
  }
  for (const Mutant& mutant : mutants()) EXPECT_GT(found[mutant.name], 0) << mutant.name << " is in no tiny model";
}

}  // namespace
}  // namespace snug
