// Images from data files to a model that answers from pixels, by the program itself, on a tower of two layers.
#include "base/file_lock.h"
#include "image_models.h"
#include "terminal.h"

namespace snug {
namespace {

TEST_F(Images, AModelLearnsToAnswerFromPixels) { expect_answers(); }
TEST_F(Slices, AModelLearnsToAnswerFromPixels) { expect_answers({"--learning-rate", "3e-3", "--max-steps", "60"}); }
// What a block adds is normed, so that drawn patches begin as small beside it: they learn faster than the rest.
TEST_F(OneSize, AModelLearnsToAnswerFromPixels) {
  expect_answers({"--learning-rate", "3e-3", "--learning-rate-vision", "3e-2", "--max-steps", "100"});
}
TEST_F(Images, RanksWithAndWithoutImagesGoOnTogetherAndResume) {
  expect_resumed({"--batch-size", "4"});
  fs::remove_all(at("whole"));
  expect_resumed({"--batch-size", "8", "--micro-batch-size", "2", "--overwrite"});
}
TEST_F(Slices, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed({"--batch-size", "4"}); }
TEST_F(OneSize, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed({"--batch-size", "4"}); }

// Run as a test of its own, as it takes a while (tests/rooms/cli.cmake). Of 8 blocks 2 have images, so that ranks
// mostly have none, and in passes of none no rank looks at any.
TEST_F(Images, DISABLED_FourRanksOfWhichSomeHaveNoImagesTakeAThousandSteps) {
  put(at("data.jsonl"), record("444.jpg", "One.") + record("rgb8.png", "Two.") + record("", "A.") + record("", "B.") +
                            record("", "C.") + record("", "D.") + record("", "E.") + record("", "F."));
  for (const std::string blocks : {"1", "2"}) {
    SCOPED_TRACE(blocks);
    run_well(train({"--ranks", "4", "--batch-size", "8", "--micro-batch-size", blocks, "--max-steps", "1000",
                    "--learning-rate", "1e-3", "--overwrite"}));
    const std::vector<double> all = losses("run");
    ASSERT_EQ(all.size(), 1000u);
    EXPECT_LT(all.back(), all.front() / 4);  // what no image decides has six answers
  }
}

// However a step's blocks are dealt out among passes and ranks, each of them is learnt from once.
TEST_F(Images, AStepLearnsTheSameHoweverItsBlocksAreDealtOut) {
  put_records(3);
  std::vector<double> expected;
  for (const auto& [ranks, blocks] : {std::pair("1", "1"), {"1", "4"}, {"2", "2"}, {"4", "1"}, {"4", "2"}}) {
    SCOPED_TRACE(std::string(ranks) + " ranks, blocks: " + blocks);
    run_well(train({"--ranks", ranks, "--micro-batch-size", blocks, "--batch-size", "8", "--max-steps", "4",
                    "--learning-rate", "1e-3", "--overwrite"}));
    const std::vector<double> found = losses("run");
    ASSERT_EQ(found.size(), 4u);
    if (expected.empty()) expected = found;
    for (size_t i = 0; i < found.size(); i++) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
  }
}

// A model is written with the names and shapes that its own code has, and without images goes on as its text model,
// with the rest of its tensors copied.
TEST_F(OneSize, AModelIsWrittenAsItsCodeHasItAndItsTextModelTrainsAlone) {
  run_well(train({"--freeze-vision-tower", "false", "--freeze-projector", "false", "--max-steps", "2"}));
  const nlohmann::json whole = header_of(at("run/model/model.safetensors"));
  const std::map<std::string, std::vector<int>> shapes{{"cls_token", {1, 1, 32}},
                                                       {"pos_embed", {1, 5, 32}},
                                                       {"patch_embed.proj.weight", {32, 3, 14, 14}},
                                                       {"patch_embed.proj.bias", {32}},
                                                       {"blocks.1.attn.qkv.weight", {96, 32}},
                                                       {"blocks.1.attn.q_bias", {32}},
                                                       {"blocks.1.attn.v_bias", {32}},
                                                       {"blocks.1.mlp.fc1.bias", {48}},
                                                       {"norm.bias", {32}}};
  for (const auto& [name, shape] : shapes)
    EXPECT_EQ(whole["model.vision_tower." + name]["shape"].get<std::vector<int>>(), shape) << name;
  EXPECT_EQ(whole["model.resampler.pos_embed"]["shape"], (std::vector<int>{4, 128}));
  for (const auto& [name, tensor] : whole.items())
    EXPECT_TRUE(name.find("blocks.2.") == name.npos && name.find("k_bias") == name.npos) << name;
  fs::rename(at("run/model"), at("trained"));
  put(at("data.jsonl"), record("", "Nothing."));
  const Outcome text =
      run_well(train({"--model", "trained", "--init", "pretrained", "--overwrite", "--max-steps", "2"}));
  EXPECT_THAT(text.err, HasSubstr("of the model its text model is used and trained"));
  EXPECT_EQ(header_of(at("run/model/model.safetensors")), whole);
}

// PEFT has the whole resampler, with the places that are never trained, and asks for them. A checkpoint that becomes an
// adapter has them of the base's file.
TEST_F(OneSize, AResamplerIsSavedBesideAnAdapterAndUsed) {
  run_well(train({"--max-steps", "1", "--freeze-vision-tower", "false"}));
  fs::rename(at("run/model"), at("base"));
  run_well(train({"--model", "base", "--init", "pretrained", "--overwrite", "--method", "lora", "--freeze-projector",
                  "false", "--max-steps", "4", "--save-every", "2"}));
  const nlohmann::json header = header_of(at("run/adapter/adapter_model.safetensors"));
  for (const char* name : {"query", "proj", "attn.in_proj_weight", "kv_proj.weight", "ln_q.bias"})
    EXPECT_TRUE(header.contains(std::string("base_model.model.model.resampler.") + name)) << name;
  EXPECT_EQ(header["base_model.model.model.resampler.pos_embed"]["shape"], (std::vector<int>{4, 128}));
  EXPECT_TRUE(header.contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
  for (const auto& [name, tensor] : header.items()) EXPECT_EQ(name.find("vision_tower"), name.npos) << name;
  const Words eval{"eval",      "--data", "data.jsonl",        "--image-dir", kImages,
                   "--compute", "fp32",   "--sequence-length", "128",         "--json"};
  const auto loss = [&](const Words& more) { return nlohmann::json::parse(run_well(with(eval, more)).out)["loss"]; };
  EXPECT_EQ(loss({"--adapter", "run", "--checkpoint", "step-4"}), loss({"--adapter", "run/adapter"}));
  EXPECT_NE(loss({"--adapter", "run/adapter"}), loss({"--model", "base"}));
}

// An adapter of the tower is of the module that its code has, of queries, keys and values together.
TEST_F(OneSize, ATowersAdaptersHaveItsModulesNames) {
  run_well(train({"--method", "lora", "--freeze-vision-tower", "false", "--max-steps", "2"}));
  const nlohmann::json header = header_of(at("run/adapter/adapter_model.safetensors"));
  const std::string blocks = "base_model.model.model.vision_tower.blocks.";
  EXPECT_EQ(header[blocks + "0.attn.qkv.lora_B.weight"]["shape"][0], 96);
  EXPECT_TRUE(header.contains(blocks + "1.mlp.fc2.lora_A.weight"));
  EXPECT_FALSE(header.contains("base_model.model.model.vision_tower.patch_embed.proj.lora_A.weight"));
}

TEST_F(OneSize, PlansCountImagesOfOneSize) {
  EXPECT_THAT(run_well({"plan", "--model", "model", "--image-tokens", "9", "--sequence-length", "64"}).out,
              HasSubstr("up to 18 patches a block"));  // 2 images of 9
}

// Rows that are made once train as those that every pass makes, on any number of ranks, in both formats, and go on.
TEST_F(Images, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(Slices, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(OneSize, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(Images, VideosAreGoneThroughOnceAndTrainTheSame) { expect_videos_train_the_same_with_cache(); }
TEST_F(Windows, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(Windows, VideosAreGoneThroughOnceAndTrainTheSame) { expect_videos_train_the_same_with_cache(); }

// An adapter's file holds the resampler whole where it is trained, under the names that PEFT gives it.
TEST_F(Slices, AResamplerIsSavedBesideAnAdapterAndUsed) {
  run_well(train({"--method", "lora", "--freeze-projector", "false", "--max-steps", "4"}));
  const nlohmann::json header = header_of(at("run/adapter/adapter_model.safetensors"));
  for (const char* name : {"query", "proj", "attn.in_proj_weight", "attn.in_proj_bias", "kv_proj.weight", "ln_q.bias"})
    EXPECT_TRUE(header.contains(std::string("base_model.model.resampler.") + name)) << name;
  EXPECT_TRUE(header.contains("base_model.model.llm.model.layers.0.self_attn.q_proj.lora_A.weight"));
  for (const auto& [name, tensor] : header.items()) EXPECT_EQ(name.find("vpm."), std::string::npos) << name;
  const Words base{"generate", "--model", "model", "--init", "random", "--prompt", "What?", "--max-new-tokens", "4"};
  run_well(with(base, {"--adapter", "run/adapter", "--image", kImages / "rgb8.png"}));
}

TEST_F(Slices, PlansCountPatchesOfViewsWhereThereIsNoData) {
  EXPECT_THAT(run_well({"plan", "--model", "model", "--image-tokens", "9", "--sequence-length", "64"}).out,
              HasSubstr("up to 12 patches a block"));  // 3 views of 4
}

// What a process has made of images stays, whatever ends it; and a run goes on from a checkpoint with rows that are
// given, or without them, to the same end.
TEST_F(Images, RowsAreMadeAgainWhereTheyAreNotWholeAndARunGoesOnWithThemOrWithout) {
  put_records(3);
  make_base();
  const Words words = adapt({"--ranks", "2", "--save-every", "2"});
  run_well(words);
  const std::string expected = adapter("run");
  const std::vector<double> all = losses("run");
  ASSERT_GE(all.size(), 6u);
  fs::remove_all(at("run"));
  for (const auto& entry : fs::recursive_directory_iterator(at("cache/images")))
    if (entry.is_regular_file() && !entry.path().has_extension()) {
      fs::resize_file(entry.path(), 100);  // one is not whole
      break;
    }
  EXPECT_THAT(run_well(with(words, {"--max-steps", "4", "--schedule", "constant"})).err,
              HasSubstr("the rows of 1 image were made in "));
  for (const char* cache : {"off", "on"}) {
    fs::remove_all(at("copy"));
    fs::copy(at("run"), at("copy"), fs::copy_options::recursive);
    const Outcome resumed =
        run_well({"train", "copy/job.yaml", "--out", "copy", "--resume", "--max-steps", "6", "--image-cache", cache});
    EXPECT_THAT(resumed.err, HasSubstr("goes on after step 4"));
    if (std::string(cache) == "off") fs::rename(at("copy"), at("off"));
  }
  EXPECT_EQ(losses("copy"), losses("off"));
  EXPECT_EQ(adapter("copy"), adapter("off"));
}

// An image's bytes, the projector's and how pictures are cut each make other rows; texts of the data do not.
TEST_F(Images, AnotherImageOrProjectorOrSizeIsNoticed) {
  fs::create_directory(at("own"));
  for (const auto& [image, answer] : kAnswers) fs::copy_file(kImages / image, at("own") / image);
  make_base();
  const Words words = adapt({"--image-dir", "own", "--overwrite"});
  const auto made = [&](const Words& more = {}) {
    const std::string err = run_well(with(words, more)).err;
    const size_t place = err.find("the rows of ");
    return place == err.npos ? 0 : std::stoi(err.substr(place + 12));
  };
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(made(), 0);
  put_records(2);
  EXPECT_EQ(made(), 0);
  fs::copy_file(kImages / "rgb8.png", at("own/444.jpg.png"));
  put(at("data.jsonl"), text_of(at("data.jsonl")) + record("444.jpg.png", "Again."));
  EXPECT_EQ(made(), 0);  // the same bytes under another name
  std::string jpeg = text_of(at("own/444.jpg"));
  put(at("own/444.jpg"), jpeg + "more");  // behind the picture's end
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(made({"--image-min-pixels", "7840"}), 2);
  const fs::path weights = at("base/model/model.safetensors");
  std::string file = text_of(weights);
  const size_t header = 8 + *reinterpret_cast<const uint64_t*>(file.data());
  const auto tensors = nlohmann::json::parse(file.substr(8, header - 8));
  const auto place = tensors["model.visual.merger.mlp.0.weight"]["data_offsets"][0].get<size_t>();
  file[header + place + 2] = static_cast<char>(file[header + place + 2] ^ 0x20);
  put(weights, file);
  EXPECT_EQ(made(), 2);
}

// Of data that is gone through once nothing is kept unless that is asked for; but rows that are there are used.
TEST_F(Images, RowsAreKeptWhereTheyAreUsedAgain) {
  make_base();
  const Words once = adapt({"--epochs", "1", "--overwrite"});
  EXPECT_THAT(run_well(once).err, HasSubstr("the data is gone through once"));
  EXPECT_FALSE(fs::exists(at("cache/images")));
  EXPECT_THAT(run_well(with(once, {"--image-cache", "on"})).err, HasSubstr("the rows of 2 images were made"));
  EXPECT_THAT(run_well(once).err, HasSubstr(", 2 are in "));
  const Outcome full = run_well(adapt({"--overwrite", "--disk-memory", "8KiB"}));
  EXPECT_THAT(full.err, HasSubstr("and a quarter of --disk-memory is 2.0 KiB; passes make the rows"));
  const Outcome refused = run(adapt({"--overwrite", "--disk-memory", "2KiB", "--image-cache", "on"}));
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("--disk-memory is 2.0 KiB; --cache-dir names another disk"));
  const Outcome trained = run(adapt({"--overwrite", "--freeze-projector", "false", "--image-cache", "on"}));
  EXPECT_EQ(trained.code, 2) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("image_cache: found on, expected auto or off"));
}

// A header says nothing of what stands behind it: the first step's images are decoded before anything is written.
TEST_F(Images, ARefusalOfADamagedImageLeavesWhatWasThere) {
  fs::create_directory(at("pictures"));
  for (const auto& [image, answer] : kAnswers) fs::copy_file(kImages / image, at("pictures") / image);
  const auto refused = [&](const Words& words) {
    SCOPED_TRACE(::testing::PrintToString(words));
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("line 2, key 'images[0]' (\"rgb8.png\"): cannot decode this PNG file"));
  };
  const auto files = [&] {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(at("run")))
      found[entry.path().string()] = entry.is_regular_file() ? text_of(entry.path()) : "";
    return found;
  };
  const Words words = train({"--image-dir", "pictures", "--batch-size", "4", "--max-steps", "4", "--save-every", "2"});
  const std::string whole = text_of(at("pictures/rgb8.png"));
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= '\xff';
  put(at("pictures/rgb8.png"), damaged);
  for (const std::string cache : {"off", "auto"})
    for (const std::string ranks : {"1", "2", "4"}) {
      refused(with(words, {"--image-cache", cache, "--ranks", ranks, "--cache-dir", "cache"}));
      EXPECT_FALSE(fs::exists(at("run")));
    }
  make_base();
  refused(adapt({"--image-dir", "pictures", "--image-cache", "on"}));  // before the run, where rows are made once
  EXPECT_FALSE(fs::exists(at("run")));
  put(at("pictures/rgb8.png"), whole);
  run_well(with(words, {"--max-steps", "2"}));
  const auto before = files();
  put(at("pictures/rgb8.png"), damaged);
  refused(with(words, {"--overwrite"}));
  EXPECT_EQ(files(), before);
  EXPECT_THAT(run({"train", "run/job.yaml", "--resume", "--max-steps", "4"}).err,
              HasSubstr("the content of the data has changed"));
  EXPECT_EQ(files(), before);
}

// A damaged file is named once, whoever reads it and however often.
TEST_F(Images, DamageThatDecodersReadOverIsSaidOnce) {
  put(at("data.jsonl"), record("junk.jpg", "One.") + record("rgb8.png", "Two.") + record("", "Nothing."));
  make_base();
  const auto expect_said = [&](const Words& words, const std::string& where) {
    SCOPED_TRACE(words[0]);
    const std::string said = run_well(words).err,
                      note = where +
                             "Corrupt JPEG data: 3 extraneous bytes before marker 0xdb; it is used as it was "
                             "decoded\n";
    const size_t at = said.find(note);
    ASSERT_NE(at, said.npos) << said;
    EXPECT_EQ(said.find("Corrupt JPEG", at + note.size()), said.npos) << said;
  };
  const std::string of_data = "note: data.jsonl, line 1, key 'images[0]' (\"junk.jpg\"): ";
  expect_said(adapt({"--image-cache", "off", "--ranks", "2", "--validation", "data.jsonl"}), of_data);
  expect_said(adapt({"--image-cache", "on", "--overwrite"}), of_data);
  expect_said(
      {"eval", "--model", "base/model", "--data", "data.jsonl", "--image-dir", kImages, "--sequence-length", "128"},
      of_data);
  expect_said({"generate", "--model", "base/model", "--prompt", "What?", "--prompt", "And <image>?", "--image",
               kImages / "junk.jpg", "--max-new-tokens", "1"},
              "note: --image (\"" + (kImages / "junk.jpg").string() + "\"): ");
  // Many are counted.
  fs::create_directory(at("many"));
  std::string records;
  for (int i = 0; i < 12; i++) {
    const std::string name = std::to_string(i) + ".jpg";
    fs::copy_file(kImages / "junk.jpg", at("many") / name);
    records += record(name, "One.");
  }
  put(at("data.jsonl"), records);
  const std::string said = run_well(adapt({"--image-cache", "off", "--overwrite", "--image-dir", "many"})).err;
  size_t named = 0;
  for (size_t at = said.find("Corrupt JPEG"); at != said.npos; at = said.find("Corrupt JPEG", at + 1)) named++;
  EXPECT_EQ(named, 5u) << said;
  EXPECT_THAT(said, HasSubstr("note: 10 images are damaged so far, and used as they were decoded\n"));
}

// What a run needs until its end is not taken from it by one that begins.
TEST_F(Images, RowsThatARunUsesAreNotRemoved) {
  make_base();
  run_well(adapt({}));
  const auto files = [&] {
    std::vector<fs::path> all;
    for (const auto& entry : fs::recursive_directory_iterator(at("cache/images")))
      if (entry.is_regular_file() && !entry.path().has_extension()) all.push_back(entry.path());
    return all;
  };
  ASSERT_EQ(files().size(), 2u);
  const uint64_t bytes = fs::file_size(files()[0]) + fs::file_size(files()[1]);
  // Another run, of one image in other sizes, has room for its own rows alone.
  Words other = adapt({"--out", "other", "--image-min-pixels", "784", "--image-max-pixels", "784", "--image-cache",
                       "on", "--disk-memory"});
  other.push_back(std::to_string(bytes));
  {
    const FileLock used = FileLock::in_use(files()[0].parent_path());
    ASSERT_TRUE(used.holds());
    const Outcome refused = run(other);
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("and other runs use what lies in "));
    EXPECT_EQ(files().size(), 2u);
  }
  const fs::path before = files()[0].parent_path();
  run_well(other);
  EXPECT_LT(std::ranges::count(files(), before, &fs::path::parent_path), 2);
}

// What the plan says is what the run takes, and neither the tower's weights nor its passes are in it.
TEST_F(Images, PlansSayWhatRowsTake) {
  make_base();
  Words words = adapt({});
  words[0] = "plan";
  const auto plan = [&](const Words& more) { return nlohmann::json::parse(run_well(with(words, more)).out); };
  const auto with_rows = plan({"--json"}), without = plan({"--json", "--image-cache", "off"});
  EXPECT_LT(with_rows["device_bytes"], without["device_bytes"]);
  EXPECT_GT(with_rows["image_rows"]["device_bytes"], 0);
  EXPECT_FALSE(without.contains("image_rows"));
  EXPECT_FALSE(fs::exists(at("cache/images")));  // a plan makes nothing
  EXPECT_THAT(run_well(words).out, HasSubstr("the tower makes those that are missing by itself"));
  const auto result = nlohmann::json::parse(run_well(adapt({"--json"})).out);
  EXPECT_EQ(result["ranks"][0]["device_bytes"], with_rows["ranks"][0]["device_bytes"]);
  EXPECT_EQ(result["ranks"][0]["host_bytes"], with_rows["ranks"][0]["host_bytes"]);
  EXPECT_FALSE(plan({"--json"}).contains("image_rows"));  // they are there now
}

TEST_F(Images, OptionsOfPartsThatAreNotTrainedOrOfImagesThatAreNotThereAreSaidToChangeNothing) {
  make_base();
  const auto said = [&](const Words& more) {
    return run_well(with(adapt({"--max-steps", "1", "--overwrite"}), more)).err;
  };
  const std::string frozen = said({"--learning-rate-vision", "1e-5", "--learning-rate-projector", "2e-5",
                                   "--lora-targets", "q_proj,attn.qkv,mlp.0"});
  EXPECT_THAT(frozen, HasSubstr("--learning-rate-vision 1e-05 changes nothing: the tower is frozen; "
                                "--freeze-vision-tower false trains it"));
  EXPECT_THAT(frozen, HasSubstr("--learning-rate-projector 2e-05 changes nothing: the projector is frozen"));
  EXPECT_THAT(frozen, HasSubstr("--lora-targets attn.qkv changes nothing: it names linears of the tower, "));
  EXPECT_THAT(frozen, HasSubstr("--lora-targets mlp.0 changes nothing: "));
  EXPECT_THAT(frozen, ::testing::Not(HasSubstr("--lora-targets q_proj changes nothing")));
  const std::string trained =
      said({"--learning-rate-vision", "1e-5", "--learning-rate-projector", "2e-5", "--lora-targets", "q_proj,attn.qkv",
            "--freeze-vision-tower", "false", "--freeze-projector", "false", "--image-max-pixels", "7840"});
  EXPECT_THAT(trained, ::testing::Not(HasSubstr("changes nothing")));
  const std::string one = said({"--learning-rate-vision", "1e-5", "--freeze-projector", "false"});
  EXPECT_THAT(one, HasSubstr("--learning-rate-vision 1e-05 changes nothing"));
  put(at("data.jsonl"), record("", "Nothing."));
  EXPECT_THAT(said({"--image-max-pixels", "7840"}),
              HasSubstr("--image-max-pixels 7840 changes nothing: the data has no images"));
  EXPECT_THAT(run_well({"generate", "--model", "base/model", "--prompt", "What?", "--max-new-tokens", "1",
                        "--image-max-pixels", "7840"})
                  .err,
              HasSubstr("--image-max-pixels 7840 changes nothing: there is no --image"));
}

// A marker, or a token of images, is no text to a model that takes images.
TEST_F(Images, MarkersWithoutImagesAreRefusedInPrompts) {
  make_base();
  const Words generate{"generate", "--model", "base/model", "--max-new-tokens", "1"};
  const Words chat{"chat", "--model", "base/model", "--max-new-tokens", "1", "--sequence-length", "128"};
  const Words image{"--image", kImages / "rgb8.png"};
  const auto expect = [&](const Words& words, const char* part, const std::string& typed = "") {
    put(at("typed"), typed);
    const Outcome outcome = finish(start(words, SNUG_BINARY, [&] {
      const int input = open(at("typed").c_str(), O_RDONLY | O_CLOEXEC);
      return dup2(input, STDIN_FILENO) == STDIN_FILENO;
    }));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect(with(generate, {"--prompt", "<image>What?"}),
         "found the marker <image> in the text and no image, expected --image FILE for each");
  expect(with(generate, {"--prompt", "What <|image_pad|>?"}), "found '<|image_pad|>' in the text");
  expect(with(generate, {"--prompt", "<video>What?"}), "videos are in data alone");
  expect(with(with(generate, image), {"--prompt", "<image> or <image>?"}),
         "found 2 markers <image> and 1 image, expected as many, or no marker");
  expect(with(with(generate, image), {"--prompt", "What?", "--system", "<image> is it."}),
         "--system: found the marker <image> in the text, expected none: images stand in the first text");
  expect(with(chat, {"--system", "<|vision_start|>"}), "--system: found '<|vision_start|>'", "What?\n");
  expect(chat, "standard input, line 1: found the marker <image> in the text and no image", "<image>What?\n");
  expect(with(chat, image), "standard input, line 2: found the marker <image> in the text, expected none",
         "What?\nAnd <image>?\n");
  expect(with(generate, {"--prompt", "What?", "--image", "https://a.b/c.png"}),
         "--image: found https://a.b/c.png, expected the path of a file: images are not fetched");
  put(at("prompts.jsonl"), R"({"prompt": "What?", "images": ["rgb8.png"]})");
  expect(with(generate, {"--prompts", "prompts.jsonl"}),
         "key 'images': found [\"rgb8.png\"], expected none: --image is");
  expect(train({"--train-modules", "visual"}), "--freeze-vision-tower false and --freeze-projector false train");
  EXPECT_THAT(
      run_well({"plan", "--model", "model", "--image-tokens", "9", "--sequence-length", "64", "--image-cache", "on"})
          .err,
      HasSubstr("--image-cache on changes nothing: without --data it is not known which images there are"));
  run_well(with(with(generate, image), {"--prompt", "What?", "--prompt", "And <image>?", "--system", "A < b."}));
}

// Who types at a terminal is asked again.
TEST_F(Images, AChatGoesOnBehindALineThatIsRefused) {
  make_base();
  const Words words{"chat", "--model", "base/model", "--max-new-tokens", "1", "--sequence-length", "128"};
  const std::string text = run_at_terminal(at(""), words, {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}, nullptr,
                                           "<image>What?\nWhat?\n\x04");
  EXPECT_THAT(text, HasSubstr("standard input, line 1: found the marker <image> in the text and no image"));
  const size_t first = text.find("> "), second = text.find("> ", first + 1);
  EXPECT_NE(text.find("> ", second + 1), text.npos) << text;  // behind the reply to the second line
}

TEST_F(Slices, MarkersWithoutImagesAreRefused) {
  const auto expect = [&](const Words& words, const char* part) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect({"generate", "--model", "model", "--init", "random", "--prompt", "<image>What?"},
         "found the marker <image> in the text and no image");
  put(at("data.jsonl"), R"({"prompt": "<image>What?", "chosen": "One.", "rejected": "Two."})");
  expect(train({"--objective", "dpo", "--method", "lora"}),
         "data.jsonl, line 1: found '<image>' in a text, expected none");
}

// The keys that images have are comments in a job file that is made for them.
TEST_F(Images, AJobFileForDataWithImagesHasTheirKeys) {
  const Words init{"init",       "--model",     "model", "--init", "random",     "--data",
                   "data.jsonl", "--image-dir", kImages, "--out",  "images.yaml"};
  run_well(init);
  std::string text = text_of(at("images.yaml"));
  const std::string keys = "# freeze_vision_tower: true\n# freeze_projector: true\n# image_max_pixels: ";
  ASSERT_THAT(text, HasSubstr(keys));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("max_slices")));
  put(at("data.jsonl"), record("", "Nothing."));
  run_well(with(init, {"--overwrite"}));
  EXPECT_THAT(text_of(at("images.yaml")), ::testing::Not(HasSubstr("freeze_")));
}

TEST_F(Images, WhatIsNotThereIsRefused) {
  const auto expect = [&](const Words& words, const char* part) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect(train({"--compute", "fp8"}), "products of the tower are not in fp8 yet");
  expect(train({"--freeze-language-model", "true"}), "expected a part that is trained");
  expect(train({"--method", "lora", "--lora-targets", "attn.qkv"}),
         "lora_targets: found attn.qkv, which names linears of the frozen tower, or of the projector, alone");
  expect({"generate", "--model", "model", "--init", "random", "--prompt", "What? <|image_pad|>", "--image",
          kImages / "rgb8.png"},
         "which the model has for images alone");
  put(at("data.jsonl"), record("", "Nothing."));
  expect(train({"--freeze-language-model", "true"}), "nothing else is trained");
}

// The model's configuration is enough for it.
TEST_F(Images, APlanSaysWhatReadingImagesTakes) {
  const auto plan = [&](const std::string& data) {
    return run_well({"plan", "--model", "model", "--data", data, "--image-dir", kImages, "--device", "cpu"}).out;
  };
  put(at("texts.jsonl"), record("", "Nothing."));
  EXPECT_THAT(plan("texts.jsonl"), ::testing::Not(HasSubstr("as images are read")));
  // Tables of decoders take 2 MiB of each of the two images.
  EXPECT_THAT(plan("data.jsonl"), HasSubstr("as images are read, up to 4.4 MiB of the host, which is among "));
}

// What reading images takes counts against the cap, once a rank, and what would fit has it too. Where rows are kept it
// is gone before the run begins.
TEST_F(Images, ReadingImagesIsWithinTheCapOfTheHost) {
  make_base();
  const Words train = adapt({"--host-memory", "1MiB", "--max-steps", "1"});
  const auto plan_of = [&](const Words& more) {
    Words words = with(train, more);
    words[0] = "plan";
    return nlohmann::json::parse(run(with(words, {"--json"})).out);
  };
  const auto hint_of = [&](const Words& more) {
    const Outcome outcome = run(with(train, more));
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    const std::string before = "it would fit with --host-memory ";
    const size_t begin = outcome.err.find(before) + before.size();
    return outcome.err.substr(begin, outcome.err.find(" or more", begin) - begin);
  };
  for (const std::string ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    put_records();
    const Words reads{"--ranks", ranks, "--image-cache", "off"};
    EXPECT_EQ(plan_of({"--ranks", ranks, "--image-cache", "on"})["driver_host_bytes"], 0);
    EXPECT_NEAR(plan_of(reads)["driver_host_bytes"].get<double>(), 4.4 * (1 << 20), 0.05 * (1 << 20));
    const std::string hint = hint_of(reads);
    run_well(with(train, with(reads, {"--host-memory", hint})));
    fs::remove_all(at("run"));
    const auto least = plan_of(with(reads, {"--host-memory", hint}));
    EXPECT_TRUE(least["fits"]);
    EXPECT_FALSE(plan_of(with(
        reads, {"--host-memory", std::to_string(least["device_bytes"].get<uint64_t>() * std::stoull(ranks))}))["fits"]);
    put(at("data.jsonl"), record("", "Nothing."));
    EXPECT_EQ(plan_of(reads)["driver_host_bytes"], 0);
  }
}

// A run goes on with the images and the numbers of pixels with which it began.
TEST_F(Images, ARunDoesNotGoOnWithOtherImages) {
  fs::create_directory(at("pictures"));
  for (const auto& [image, answer] : kAnswers) fs::copy_file(kImages / image, at("pictures") / image);
  run_well(train({"--image-dir", "pictures", "--max-steps", "2", "--save-every", "2"}));
  const Words on{"train", "run/job.yaml", "--resume", "--max-steps", "3"};
  const std::string image = text_of(at("pictures/rgb8.png")), processor = text_of(at("model/preprocessor_config.json"));
  put(at("pictures/rgb8.png"), image + "more");
  const Outcome other = run(on);
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_THAT(other.err, HasSubstr("the content of the data has changed"));
  put(at("pictures/rgb8.png"), image);
  // Other bytes of the same size and number.
  put(at("pictures/rgb8.png"), image.substr(0, image.size() - 1) + "?");
  EXPECT_THAT(run(on).err,
              HasSubstr("the content of the data has changed, or what the model's tokenizer and template make "
                        "of it (images: found "));
  put(at("pictures/rgb8.png"), image);
  auto config = nlohmann::json::parse(processor);
  config["image_mean"] = {0.1, 0.2, 0.3};
  put(at("model/preprocessor_config.json"), config.dump());
  EXPECT_THAT(run(on).err, HasSubstr("image processor"));
  put(at("model/preprocessor_config.json"), processor);
  run_well(on);
}

}  // namespace
}  // namespace snug
