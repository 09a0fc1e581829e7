// The program on files whose tensors are of several types: what it writes has the base's own, what it reads is as it is
// stored, and what is narrowed is said.
#include "stored_tensors.h"

namespace snug {
namespace {

const fs::path kBnb = fs::path(SNUG_FIXTURES) / "bnb";

// Of what is stored in a type: half the distance between neighbours, relative to a number.
double half_step(const std::string& dtype) { return dtype == "F16" ? 0x1p-11 : dtype == "BF16" ? 0x1p-8 : 0x1p-24; }

class Dtypes : public Cli {
 protected:
  // The tiny Llama with every tensor in the type that `dtype` says, and the buffers of an old file beside.
  void make_model(const std::string& out, const std::function<std::string(const std::string&)>& dtype) const {
    StoredTensors tensors = read_model(kModels / "llama");
    for (auto& [name, tensor] : tensors) tensor = stored_as(dtype(name), tensor.shape, numbers_of(tensor));
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = stored_as("F32", {3}, {1, 0.1f, 0.01f});
    fs::create_directories(at(out));
    fs::copy_file(kModels / "llama" / "config.json", at(out) / "config.json");
    write_stored(at(out) / "model.safetensors", tensors);
  }

  nlohmann::json config_of(const std::string& model) const {
    return nlohmann::json::parse(text_of(at(model) / "config.json"));
  }
  void change_config(const std::string& model, const std::string& key, const nlohmann::json& value) const {
    nlohmann::json config = config_of(model);
    config[key] = value;
    put(at(model) / "config.json", config.dump());
  }

  // In fp32, with weights as they are stored.
  double loss_of(const Words& model) const {
    const Outcome outcome = run(
        with({"eval", "--data", at("data.jsonl"), "--sequence-length", "24", "--compute", "fp32", "--json"}, model));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? nlohmann::json::parse(outcome.out)["loss"].get<double>() : 0;
  }

  void SetUp() override {
    put(at("data.jsonl"),
        "{\"input_ids\": [1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 2, 6, 10], \"labels\": [1, 5, 9, 13, 17, 21, 25, 29, "
        "33, 37, 2, 6, 10]}\n{\"input_ids\": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], \"labels\": [3, 1, 4, 1, 5, 9, 2, 6, 5, "
        "3]}\n");
  }
};

// The differences are half of what lies between neighbours: 1 / 127 of a row's largest; 1 and 0.6962 of NF4's numbers;
// 8 numbers between powers of two of e4m3, and 2^-9 beside its zero, of 448.
TEST_F(Dtypes, WhatABaseInFewerBitsDiffersByIsSaid) {
  make_model("m", [](const std::string& name) { return name.find("mlp") != name.npos ? "F16" : "BF16"; });
  const auto said = [&](const std::string& format) {
    return run({"eval", "--model", "m", "--data", "data.jsonl", "--sequence-length", "24", "--base-format", format})
        .err;
  };
  const std::string stored =
      "14 of 21 tensors ('model.layers.0.self_attn.q_proj.weight') are stored in bf16 and fp16, and ";
  EXPECT_THAT(said("int8"),
              HasSubstr(stored + "kept in int8: a number differs by at most 1 in 254 of the largest in its row\n"));
  EXPECT_THAT(said("nf4"),
              HasSubstr(stored + "kept in nf4: a number differs by at most 0.152 of the largest of its 64, whose "
                                 "scale differs by at most 0.0071 of how far scales lie from their mean\n"));
  EXPECT_THAT(said("fp8"),
              HasSubstr(stored + "kept in fp8: a number differs by at most 1 in 16 of itself, or 1 in 458752 of "
                                 "the largest in its row\n"));
  EXPECT_THAT(said("bf16"), ::testing::Not(HasSubstr("differs by")));
}

TEST_F(Dtypes, MergedTensorsHaveTheBasesTypesAndUntouchedOnesItsBytes) {
  const fs::path adapter = fs::path(SNUG_FIXTURES) / "base" / "adapter";  // of all linears: alpha 4, rank 2
  const StoredTensors low = read_stored(adapter / "adapter_model.safetensors");
  const auto mixed = [](const std::string& name) -> std::string {
    if (name.find("norm") != name.npos || name == "lm_head.weight") return "F32";
    return name.find("mlp") != name.npos || name.find("v_proj") != name.npos ? "F16" : "BF16";
  };
  for (const std::string form : {"F32", "F16", "BF16", "mixed"}) {
    SCOPED_TRACE(form);
    make_model(form, [&](const std::string& name) { return form == "mixed" ? mixed(name) : form; });
    change_config(form, "dtype", form == "F32" ? "float32" : form == "BF16" ? "bfloat16" : "float16");
    const Outcome outcome =
        run({"merge", "--model", form, "--adapter", adapter, "--out", "merged", "--overwrite", "--compute", "fp32"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const StoredTensors base = read_model(at(form)), merged = read_model(at("merged"));
    ASSERT_EQ(base.size(), merged.size());
    EXPECT_EQ(config_of("merged")["dtype"], config_of(form)["dtype"]);
    size_t touched = 0;
    for (const auto& [name, tensor] : base) {
      const std::string half = "base_model.model." + name.substr(0, name.rfind(".weight")) + ".lora_";
      if (!low.contains(half + "A.weight")) {
        EXPECT_EQ(merged.at(name), tensor) << name;
        continue;
      }
      touched++;
      ASSERT_EQ(merged.at(name).dtype, tensor.dtype) << name;
      const std::vector<float> w = numbers_of(tensor), found = numbers_of(merged.at(name)),
                               a = numbers_of(low.at(half + "A.weight")), b = numbers_of(low.at(half + "B.weight"));
      const auto cols = static_cast<size_t>(tensor.shape[1]), rank = a.size() / cols;
      for (size_t i = 0; i < w.size(); i++) {
        double exact = w[i];
        for (size_t k = 0; k < rank; k++)
          exact += 2.0 * static_cast<double>(b[i / cols * rank + k]) * static_cast<double>(a[k * cols + i % cols]);
        ASSERT_NEAR(found[i], exact, half_step(tensor.dtype) * std::abs(exact) + 0x1p-25 + 1e-7) << name << ", " << i;
      }
    }
    EXPECT_EQ(touched, 14u);
    const double apart = loss_of({"--model", form, "--adapter", adapter}), together = loss_of({"--model", "merged"});
    EXPECT_NEAR(together, apart, (form == "F32" ? 1e-6 : half_step(form == "mixed" ? "BF16" : form)) * apart);
    EXPECT_GT(std::abs(apart - loss_of({"--model", form})), 1e-3) << "the adapter does something";
  }
}

// What a run took as the format of its base is no wish of who merges by its job file.
TEST_F(Dtypes, ARunsJobFileMergesInTheBasesTypes) {
  make_model("base", [](const std::string&) { return "F16"; });
  ASSERT_EQ(run({"train", "--model", "base", "--data", "data.jsonl", "--batch-size", "1", "--sequence-length", "24",
                 "--max-steps", "1", "--out", "run"})
                .code,
            0);
  const Outcome merged = run({"merge", "run/job.yaml", "--adapter", "run/adapter", "--out", "merged"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  for (const auto& [name, tensor] : read_model(at("merged")))
    EXPECT_EQ(tensor.dtype, read_model(at("base")).at(name).dtype) << name;
}

TEST_F(Dtypes, AMergedValueBeyondFp16IsRefusedByTensor) {
  make_model("half", [](const std::string&) { return "F16"; });
  fs::copy(kModels / "llama" / "adapter_qv", at("adapter"));
  StoredTensors low = read_stored(at("adapter/adapter_model.safetensors"));
  StoredTensor& b = low.at("base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight");
  b = stored_as("F32", b.shape, std::vector<float>(static_cast<size_t>(b.shape[0] * b.shape[1]), 3e5f));
  write_stored(at("adapter/adapter_model.safetensors"), low);
  const Words merge{"merge", "--model", "half", "--adapter", "adapter", "--out", "merged"};
  const Outcome refused = run(merge);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("'model.layers.1.self_attn.v_proj.weight'"), HasSubstr("65504"),
                                 HasSubstr("--base-format bf16")));
  EXPECT_FALSE(fs::exists(at("merged")));
  const Outcome outcome = run(with(merge, {"--base-format", "bf16"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read_model(at("merged")).at("model.layers.1.self_attn.v_proj.weight").dtype, "BF16");
}

TEST_F(Dtypes, ATrainedModelHasTheBasesTypes) {
  const auto types = [](const std::string& name) -> std::string {
    return name.find("norm") != name.npos ? "F32" : "F16";
  };
  make_model("base", types);
  const Outcome outcome = run(
      {"train",    "--model",           "base", "--data",          "data.jsonl", "--method",    "full", "--batch-size",
       "1",        "--sequence-length", "24",   "--learning-rate", "1e-4",       "--max-steps", "2",    "--schedule",
       "constant", "--compute",         "bf16", "--out",           "run"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const StoredTensors base = read_model(at("base")), trained = read_model(at("run/model"));
  ASSERT_EQ(base.size(), trained.size());
  for (const auto& [name, tensor] : base) {
    EXPECT_EQ(trained.at(name).dtype, tensor.dtype) << name;
    const std::vector<float> before = numbers_of(tensor), after = numbers_of(trained.at(name));
    // Two steps of AdamW move each number by 2e-4 at most, and what did not move has all bits of fp16.
    double most = 0;
    for (size_t i = 0; i < before.size(); i++)
      most = std::max(most, std::abs(static_cast<double>(before[i]) - static_cast<double>(after[i])) -
                                half_step(tensor.dtype) * std::abs(static_cast<double>(before[i])));
    EXPECT_LE(most, 2.1e-4) << name;
  }
}

// tie_word_embeddings is true, and a head lies there.
class TiedHead : public Dtypes {
 protected:
  void make(const std::string& out, const StoredTensor& head, bool says_tied) const {
    StoredTensors tensors = read_model(tied);
    fs::create_directories(at(out));
    fs::copy_file(tied / "config.json", at(out) / "config.json");
    change_config(out, "tie_word_embeddings", says_tied);
    tensors["lm_head.weight"] = head;
    write_stored(at(out) / "model.safetensors", tensors);
  }
  StoredTensor reversed() const {
    std::vector<float> values = numbers_of(embedding);
    std::ranges::reverse(values);
    return stored_as(embedding.dtype, embedding.shape, values);
  }

  const fs::path tied = kModels / "qwen2_tied";
  const StoredTensor embedding = read_model(tied).at("model.embed_tokens.weight");
  const StoredTensor other = reversed();
};

TEST_F(TiedHead, OfACheckpointIsTheOneThatWasTrained) {
  make("differs", other, true);
  const Outcome outcome = run({"train", "--model", "differs", "--data", "data.jsonl", "--method", "full",
                               "--batch-size", "1", "--sequence-length", "24", "--max-steps", "2", "--out", "run"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const StoredTensors written = read_model(at("run/model"));
  fs::remove_all(at("run/model"));  // as of a run that was killed
  loss_of({"--model", "run", "--checkpoint", "last", "--cache-dir", "cache"});
  fs::path made;
  for (const auto& entry : fs::recursive_directory_iterator(at("cache")))
    if (entry.path().filename().string().starts_with("step-2-")) made = entry.path();
  EXPECT_EQ(read_model(made), written);
  EXPECT_EQ(config_of(made)["tie_word_embeddings"], false);
}

TEST_F(TiedHead, ThatDiffersFromTheEmbeddingIsTheHead) {
  make("equal", embedding, true);
  make("wide", stored_as("F32", embedding.shape, numbers_of(embedding)), true);  // equal in value
  make("differs", other, true);
  make("untied", other, false);
  EXPECT_EQ(loss_of({"--model", "equal"}), loss_of({"--model", tied}));
  EXPECT_EQ(loss_of({"--model", "wide"}), loss_of({"--model", tied}));
  EXPECT_EQ(loss_of({"--model", "differs"}), loss_of({"--model", "untied"}));
  EXPECT_NE(loss_of({"--model", "differs"}), loss_of({"--model", tied}));
  const Outcome said = run({"eval", "--model", "differs", "--data", "data.jsonl", "--sequence-length", "24"});
  EXPECT_THAT(said.err, AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings")));
  // What is written says of itself what it is, and has what was there.
  for (const std::string model : {"equal", "differs"}) {
    ASSERT_EQ(
        run({"merge", "--model", model, "--adapter", tied / "adapter_init", "--out", "merged", "--overwrite"}).code, 0);
    EXPECT_EQ(read_model(at("merged")).at("lm_head.weight"), read_model(at(model)).at("lm_head.weight"));
    EXPECT_EQ(config_of("merged")["tie_word_embeddings"], model == "equal");
  }
}

// The numbers of a linear that bitsandbytes has in nf4, by the tables that the file brings along.
StoredTensor numbers_of_nf4(const StoredTensors& tensors, const std::string& name) {
  const auto at = [&](const std::string& tail) { return tensors.at(name + "." + tail); };
  const auto state = nlohmann::json::parse(at("quant_state.bitsandbytes__nf4").bytes);
  const auto codes = elements_of<uint8_t>(tensors.at(name)), scales = elements_of<uint8_t>(at("absmax"));
  const auto map = numbers_of(at("quant_map")), scale_map = numbers_of(at("nested_quant_map")),
             blocks = numbers_of(at("nested_absmax"));
  const float offset = state["nested_offset"];
  std::vector<float> values;
  for (size_t i = 0; i < codes.size() * 2; i++) {
    const size_t code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15, block = i / 64;
    values.push_back(map[code] * (scale_map[scales[block]] * blocks[block / 256] + offset));
  }
  return stored_as("F32", state["shape"], values);
}

// The model with these numbers in place of the codes.
void leave_out(StoredTensors& tensors, const std::string& name) {
  const StoredTensor plain = numbers_of_nf4(tensors, name);
  std::erase_if(tensors, [&](const auto& tensor) { return tensor.first.starts_with(name); });
  tensors[name] = plain;
}

TEST_F(Dtypes, LinearsLeftOutOfAQuantisationAreAsStored) {
  const double all = loss_of({"--model", kBnb / "nf4"});
  for (const Words& left_out : {Words{"self_attn.q_proj"},
                                {"mlp.up_proj"},
                                {"self_attn.o_proj", "mlp.down_proj"},
                                {"self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"},
                                {"self_attn.q_proj", "self_attn.v_proj"}}) {
    SCOPED_TRACE(left_out.back());
    fs::remove_all(at("some"));
    fs::copy(kBnb / "nf4", at("some"));
    StoredTensors tensors = read_model(kBnb / "nf4");
    for (const std::string& linear : left_out) {
      const std::string name = "model.layers.0." + linear + ".weight";
      leave_out(tensors, name);
    }
    write_stored(at("some/model.safetensors"), tensors);
    EXPECT_NEAR(loss_of({"--model", "some"}), all, 1e-6);
    const Outcome trained = run({"train", "--model", "some", "--data", "data.jsonl", "--sequence-length", "24",
                                 "--batch-size", "1", "--max-steps", "2", "--out", "run", "--overwrite"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    const Outcome shared =
        run({"train", "--model", "some", "--data", "data.jsonl", "--sequence-length", "24", "--ranks", "2", "--zero",
             "3", "--batch-size", "2", "--max-steps", "2", "--out", "two", "--overwrite"});
    EXPECT_EQ(shared.code, 0) << shared.err;
    const Outcome merged =
        run({"merge", "--model", "some", "--adapter", "run/adapter", "--out", "merged", "--overwrite"});
    ASSERT_EQ(merged.code, 0) << merged.err;
    EXPECT_EQ(read_model(at("merged")).at("model.layers.0." + left_out[0] + ".weight").dtype, "F32");
  }
}

TEST_F(Dtypes, APlanWithoutWeightsIsThatOfTheQuantisationThatTheConfigNames) {
  const auto weights = [&](const fs::path& model, const std::string& form) -> uint64_t {
    const Outcome outcome = run({"plan", "--model", model, "--sequence-length", "24", "--device", "cpu", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("no weight files") == outcome.err.npos, form.empty());
    EXPECT_THAT(outcome.err, HasSubstr(form));
    return nlohmann::json::parse(outcome.out)["classes"]["weights"];
  };
  for (const auto& [model, form] : {std::pair("int8", "int8"), {"nf4", "nf4"}, {"nf4_single", "nf4"}}) {
    fs::create_directories(at(model));
    fs::copy_file(kBnb / model / "config.json", at(model) / "config.json");
    EXPECT_EQ(weights(at(model), form), weights(kBnb / model, "")) << model;
  }
  // A module that the config leaves out is taken to be plain, as files have it that leave it out.
  const std::string down = "model.layers.0.mlp.down_proj";
  auto quantisation = config_of("nf4")["quantization_config"];
  quantisation["llm_int8_skip_modules"] = {"lm_head", down};
  change_config("nf4", "quantization_config", quantisation);
  fs::copy(kBnb / "nf4", at("some"));
  StoredTensors tensors = read_model(kBnb / "nf4");
  leave_out(tensors, down + ".weight");
  write_stored(at("some/model.safetensors"), tensors);
  EXPECT_EQ(weights(at("nf4"), "nf4"), weights(at("some"), ""));
  quantisation["quant_method"] = "hqq";
  change_config("nf4", "quantization_config", quantisation);
  expect_refusal({"plan", "--model", at("nf4"), "--sequence-length", "24"}, {"hqq", "bitsandbytes"});
}

TEST_F(Dtypes, WhatIsNarrowedIsSaid) {
  make_model("half", [](const std::string&) { return "F16"; });
  make_model("mixed", [](const std::string& name) { return name.find("norm") != name.npos ? "F32" : "BF16"; });
  const auto said = [&](const std::string& model, const Words& more) {
    return run(with({"eval", "--model", model, "--data", "data.jsonl", "--sequence-length", "24"}, more)).err;
  };
  EXPECT_THAT(said("half", {}), AllOf(HasSubstr("fp16"), HasSubstr("3 bits"), HasSubstr("--compute fp32")));
  EXPECT_THAT(said("mixed", {}), AllOf(HasSubstr("fp32"), HasSubstr("16 bits"), HasSubstr("norm")));
  EXPECT_THAT(said("half", {"--compute", "fp32"}), Not(HasSubstr("bits")));
  for (const char* command : {"plan", "train"})
    EXPECT_THAT(run(job(command, {"--compute", "bf16"}, "half")).err, HasSubstr("3 bits"));
}

}  // namespace
}  // namespace snug
