#include "format/model_path.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/safetensors.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

class ModelPath : public testing::Test {
 protected:
  // A file within the test's directory, and the folders that it needs.
  void put(const fs::path& name, std::string_view text = "{}") {
    fs::create_directories(at(name).parent_path());
    write_text(at(name), text);
  }
  fs::path at(const fs::path& name) const { return directory_.path() / name; }
  testing::AssertionResult refuses_model(const fs::path& name, std::string_view part) {
    return fails_with<UserError>([&] { find_model_directory(at(name).string()); }, part);
  }
  testing::AssertionResult refuses_adapter(const fs::path& name, std::string_view part) {
    return fails_with<UserError>([&] { find_adapter_directory(at(name).string()); }, part);
  }
  testing::AssertionResult refuses_weights(std::string_view part) {
    return fails_with<UserError>([&] { refuse_other_weights(directory_.path()); }, part);
  }
  TempDirectory directory_;
};

TEST_F(ModelPath, ADirectoryWithItsConfigurationIsWhatIsMeant) {
  put("m/config.json");
  put("a/adapter_config.json");
  EXPECT_EQ(find_model_directory(at("m").string()), at("m"));
  EXPECT_EQ(find_adapter_directory(at("a/").string()), at("a/"));
}

TEST_F(ModelPath, AnAdapterAndAModelAreNamedForEachOther) {
  put("m/config.json");
  put("a/adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"],
                                   "base_model_name_or_path": "maker/base"})");
  EXPECT_TRUE(
      refuses_model("a", "is an adapter (it holds adapter_config.json), expected a model directory: --adapter"));
  EXPECT_TRUE(refuses_model("a", "with --model 'maker/base'"));
  EXPECT_TRUE(refuses_adapter("m", "is a whole model (config.json is there"));
  put("m/tokenizer.json");
  EXPECT_TRUE(refuses_model("m/tokenizer.json", "is a file, expected a model directory: --model " + at("m").string()));
}

TEST_F(ModelPath, TheLastCheckpointOfATrainerIsNamed) {
  for (const char* name : {"checkpoint-90", "checkpoint-1000", "checkpoint-200"}) {
    put(fs::path("t") / name / "config.json");
    put(fs::path("u") / name / "adapter_config.json");
  }
  EXPECT_TRUE(refuses_model("t", "the last of them " + at("t/checkpoint-1000").string()));
  EXPECT_TRUE(refuses_adapter("u", "--adapter " + at("u/checkpoint-1000").string()));
  EXPECT_TRUE(refuses_model("u", "found an adapter, expected a model directory: holds a trainer's checkpoints"));
}

TEST_F(ModelPath, OfARunItsAdapterOrModelIsNamed) {
  for (const char* name : {"run/job.yaml", "run/plan.json", "run/adapter/adapter_config.json"}) put(name);
  EXPECT_TRUE(refuses_adapter(
      "run", "is the directory of a run, and the adapter is in it, in " + at("run/adapter").string() + ": --adapter"));
  EXPECT_TRUE(refuses_model("run", "found an adapter, expected a model directory: is the directory of a run"));
  for (const char* name : {"full/job.yaml", "full/plan.json", "full/model/config.json"}) put(name);
  EXPECT_TRUE(refuses_model("full", "--model " + at("full/model").string()));
}

TEST_F(ModelPath, FoldersWithAModelAreNamed) {
  put("one/inner/config.json");
  EXPECT_TRUE(refuses_model("one", "holds no config.json, which lies in " + at("one/inner").string()));
  for (const char* name : {"a", "b", "c", "d"}) put(fs::path("many") / name / "config.json");
  EXPECT_TRUE(refuses_model("many", "in its folders 'a', 'b', 'c' and 1 more"));
}

TEST_F(ModelPath, WhatElseLiesThereIsSaid) {
  fs::create_directory(at("nothing"));
  EXPECT_TRUE(refuses_model("nothing", "is empty, expected a model directory, with config.json"));
  EXPECT_TRUE(refuses_adapter("nothing", "is empty, expected an adapter's directory, with adapter_config.json"));
  EXPECT_TRUE(refuses_model("nowhere", "found nothing there"));
  put("meta/params.json");
  put("meta/consolidated.00.pth");
  EXPECT_TRUE(refuses_model("meta", "Meta's own layout"));
  put("notes/readme.md");
  EXPECT_TRUE(refuses_model("notes", "found 'readme.md', but no config.json"));
}

TEST_F(ModelPath, LinksToNothingAreNamed) {
  fs::create_directory_symlink(at("gone"), at("link"));
  EXPECT_TRUE(refuses_model("link", "is a link to '" + at("gone").string() + "', where nothing is"));
  put("m/tokenizer.json");
  fs::create_symlink("../blobs/12", at("m/config.json"));
  EXPECT_TRUE(refuses_model("m", "config.json is a link to '../blobs/12', where nothing is"));
}

TEST_F(ModelPath, WeightsThatCannotBeReadAreNamed) {
  EXPECT_NO_THROW(refuse_other_weights(directory_.path())) << "a configuration alone may be planned";
  put("model.onnx");
  put("__0_0.distcp");
  EXPECT_TRUE(
      refuses_weights("found 'model.onnx', expected weights under the names model.safetensors or "
                      "pytorch_model.bin, or their shards"));
  fs::remove(at("model.onnx"));
  EXPECT_TRUE(refuses_weights("found '__0_0.distcp', expected weights under the names"));
  put("flax_model.msgpack");
  EXPECT_TRUE(refuses_weights("found 'flax_model.msgpack', expected weights under the names model.safetensors"));
  put("x.gguf");
  EXPECT_TRUE(refuses_weights("found 'x.gguf' beside config.json"));
  fs::create_symlink("../blobs/34", at("model.safetensors"));
  EXPECT_TRUE(refuses_weights("model.safetensors is a link to '../blobs/34', where nothing is"));
  put("pytorch_model-00001-of-00002.bin");
  EXPECT_TRUE(refuses_weights("'pytorch_model-00001-of-00002.bin', but not their index pytorch_model.bin.index.json"));
  put("model-00002-of-00003.safetensors");
  EXPECT_TRUE(refuses_weights("'model-00002-of-00003.safetensors', but not their index model.safetensors.index.json"));
}

TEST_F(ModelPath, WhatATrainerLeavesWithoutWeightsIsNamed) {
  put("training_args.bin");
  EXPECT_TRUE(refuses_weights("found 'training_args.bin', which holds a trainer's settings, and no weights"));
  put("global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  EXPECT_TRUE(
      refuses_weights("found 'global_step5', a training checkpoint of DeepSpeed, expected model.safetensors: "
                      "DeepSpeed's program zero_to_fp32.py makes one file of its parts"));
  put("zero_to_fp32.py");
  EXPECT_TRUE(refuses_weights("the program beside it, zero_to_fp32.py makes one file of its parts"));
  put("c/zero_to_fp32.py");
  put("c/latest", "global_step5");
  EXPECT_TRUE(refuses_model("c", "found 'zero_to_fp32.py', a training checkpoint of DeepSpeed"));
}

TEST_F(ModelPath, AnIdOfTheHubIsTheSnapshotOfItsMainBranch) {
  ::setenv("HF_HUB_CACHE", at("hub").c_str(), 1);
  const fs::path repository = "hub/models--maker--a.model-1";
  const auto refused = [](const std::string& id, std::string_view part) {
    return fails_with<UserError>([&] { find_model_directory(id); }, part);
  };
  EXPECT_TRUE(refused("maker/a.model-1", "'hf download maker/a.model-1' fetches"));
  put(repository / "snapshots/123abc/config.json");
  EXPECT_EQ(find_model_directory("maker/a.model-1"), at(repository / "snapshots/123abc")) << "the only one";
  put(repository / "snapshots/456def/config.json");
  EXPECT_TRUE(refused("maker/a.model-1", "snapshots '123abc', '456def'"));
  put(repository / "refs/main", "456def\n");
  EXPECT_EQ(find_model_directory("maker/a.model-1"), at(repository / "snapshots/456def"));
  put(repository / "refs/main", "../../../..");
  EXPECT_TRUE(refused("maker/a.model-1", "none of them branch main's"));
  put("hub/models--maker--half/snapshots/1/tokenizer.json");
  EXPECT_TRUE(refused("maker/half", "but no config.json; 'hf download maker/half' fetches what is missing"));
  fs::create_directories(at("hub/models--maker--none/snapshots/1"));
  EXPECT_TRUE(refused("maker/none", "maker/none: found nothing in "));
  fs::remove_all(at("hub/models--maker--none"));
  EXPECT_TRUE(refused("maker/half@v2", "'hf download maker/half --revision v2 --local-dir DIR' fetches another"));
  EXPECT_TRUE(refused("https://host/maker/half/tree/main", "is an address, expected a model directory here"));
  EXPECT_TRUE(refused("https://host/maker/half/tree/main", "'hf download maker/half' fetches it, --model maker/half"));
  EXPECT_TRUE(refused("oldname", "'hf download oldname --local-dir DIR' fetches it, and --model DIR takes it"));
  put("hub/models--oldname/snapshots/7/config.json");
  EXPECT_TRUE(refused("oldname", "cache has a model of that name: --model " + at("hub/models--oldname").string()));
  fs::remove_all(at("hub/models--oldname"));
  EXPECT_TRUE(refuses_model("hub", "which holds 'maker/a.model-1', 'maker/half'"));
  EXPECT_TRUE(refuses_model(repository, "whose snapshot is"));
  for (const char* no_id : {"../model", "a/b/c", "/model", "maker/", "-x/y", "a b/c"})
    EXPECT_TRUE(refused(no_id, "found nothing there")) << no_id;
  ::unsetenv("HF_HUB_CACHE");
}

TEST_F(ModelPath, WhereTheCacheLiesGoesByItsVariables) {
  const char* const home = ::getenv("HOME");
  const std::string old = home ? home : "";
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) ::unsetenv(name);
  ::setenv("HOME", at("home").c_str(), 1);
  const auto looks_in = [&](const fs::path& cache) {
    return fails_with<UserError>([&] { find_model_directory("maker/model"); }, "cache (" + at(cache).string() + ")");
  };
  EXPECT_TRUE(looks_in("home/.cache/huggingface/hub"));
  ::setenv("XDG_CACHE_HOME", at("x").c_str(), 1);
  EXPECT_TRUE(looks_in("x/huggingface/hub"));
  ::setenv("HF_HOME", at("h").c_str(), 1);
  EXPECT_TRUE(looks_in("h/hub"));
  ::setenv("HUGGINGFACE_HUB_CACHE", at("u").c_str(), 1);
  EXPECT_TRUE(looks_in("u"));
  ::setenv("HF_HUB_CACHE", at("c").c_str(), 1);
  EXPECT_TRUE(looks_in("c"));
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) ::unsetenv(name);
  home ? ::setenv("HOME", old.c_str(), 1) : ::unsetenv("HOME");
}

}  // namespace
}  // namespace snug
