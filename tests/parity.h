// Compares sessions on tiny models with what transformers and peft computed (tests/fixtures/README.md).
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "tiny_model.h"

namespace snug {

using StoredTensors = std::map<std::string, std::vector<float>>;

// The gradient of every parameter, after the passes of a session. Both orders of sums may be as far from fp64 as
// transformers' is.
inline void expect_gradients(Session& session, const StoredTensors& reference, const nlohmann::json& json) {
  const double bound = std::max(1e-5, 2 * json["gradient_error"].get<double>());
  const std::vector<ParamSpec>& params = session.spec().table.params;
  for (size_t i = 0; i < params.size(); i++) {
    if (params[i].fixed) continue;
    const auto expected = reference.find("grad." + params[i].name);
    ASSERT_TRUE(expected != reference.end()) << params[i].name;
    const double error = relative_error(values(session, session.compiled().owned[i].gradient), expected->second);
    EXPECT_TRUE(error <= bound) << params[i].name << " is off by " << error;
  }
}

// Ten steps, loss by loss and norm by norm, and what they leave under names that begin with `prefix`: more than
// `tensors` tensors.
inline void expect_ten_steps(const JobSpec& spec,
                             const std::function<std::vector<TinySample>(int64_t number)>& samples_of_step,
                             const nlohmann::json& expected, const StoredTensors& reference, const std::string& prefix,
                             size_t tensors) {
  TinySession session(spec, 2);
  session.load();
  TinyTrainer trainer(session);
  for (int64_t number = 1; number <= 10; number++) {
    const auto i = static_cast<size_t>(number - 1);
    const StepResult got = trainer.step(samples_of_step(number), number, expected["learning_rate"][i].get<double>());
    const double loss = expected["loss"][i].get<double>(), norm = expected["grad_norm"][i].get<double>();
    EXPECT_NEAR(got.loss, loss, 1e-4 * loss) << "step " << number;
    EXPECT_NEAR(got.norm, norm, 1e-3 * norm) << "step " << number;
  }
  size_t compared = 0;
  for (size_t p = 0; p < spec.table.params.size(); p++) {
    const auto found = reference.find(prefix + spec.table.params[p].name);
    if (found == reference.end()) continue;
    compared++;
    const double error = relative_error(values(session, session.compiled().owned[p].weight), found->second);
    EXPECT_TRUE(error <= 1e-3) << found->first << " is off by " << error;
  }
  EXPECT_GT(compared, tensors);
}

}  // namespace snug
