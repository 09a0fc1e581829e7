// What the keys of a record and of its messages do: read, honoured, refused, passed over or said.
#include <iterator>
#include <map>
#include <random>
#include <sstream>

#include "shapes_fixture.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::map<std::string, Json> kRecords = {
    {"alpaca", Json::parse(R"({"instruction": "q", "output": "a"})")},
    {"sharegpt", Json::parse(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})")},
    {"messages",
     Json::parse(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})")},
    {"text", Json::parse(R"({"text": "q"})")},
    {"tokens", Json::parse(R"({"input_ids": [65, 66, 67]})")}};
const std::vector<std::string> kChats = {"alpaca", "sharegpt", "messages"};
const std::vector<std::string> kLists = {"sharegpt", "messages"};
const std::vector<std::string> kAll = {"alpaca", "sharegpt", "messages", "text", "tokens"};

Json with(Json record, const std::string& key, const Json& value) {
  record[key] = value;
  return record;
}

// The second message, the reply, gets the key.
Json with_in_reply(Json record, const std::string& key, const Json& value) {
  record.begin().value()[1][key] = value;
  return record;
}

// ---- Records --------------------------------------------------------------------------------------------------------

TEST_F(Shapes, KeysThatChangeWhatIsLearntAreRefused) {
  const struct {
    std::vector<std::string> shapes, keys;
    std::string part;
  } cases[] = {
      {kAll,
       {"chosen", "rejected", "margin", "score_chosen", "chosen_ids"},
       "expected none with --objective sft or distill: dpo, orpo, simpo and reward learn from pairs of replies, kto "
       "from pairs"},
      {kAll,
       {"label", "kto_tag"},
       "expected none with --objective sft or distill: kto learns from replies with a label"},
      {{"text", "tokens"}, {"tools", "Tools"}, "what may be called is 'tools' of a conversation"},
      {kChats, {"tools"}, "expected a list"},
      {kChats, {"Tools"}, "expected 'tools'; --columns tools=Tools names it"},
      {kAll, {"tool_calls", "function_call", "functions", "toolCalls"}, "calls are 'tool_calls' of an assistant's"},
      {kAll, {"reasoning_content", "thinking", "reasoning-content", "cot"}, "thinking is 'reasoning_content' or"},
      {kAll, {"audio"}, "sound is not supported yet"},
      {kAll, {"video", "video_path"}, "a record's videos are 'videos', lists of frames"},
      {kChats, {"videos"}, "expected none: the model takes no images"},
      {kChats, {"image", "images"}, "expected none: the model takes no images"},
      {{"text"}, {"image", "images"}, "expected none beside 'text': images stand in conversations"},
      {{"tokens"}, {"image", "images"}, "expected none beside 'input_ids': images stand in conversations"},
      {kAll, {"image_url", "img"}, "a record's images are 'images' or 'image'"},
      {kAll, {"documents"}, "documents"},
      {kAll, {"weights", "sample_weight", "loss_scale"}, "--columns weight=FIELD"},
      {kAll, {"chat_template_kwargs"}, "what a template is told beside messages is not rendered yet"},
      {kAll, {"chat_template"}, "--template names one for all records"},
      {{"alpaca"}, {"context", "passage"}, "--columns input=FIELD"},
      {kLists, {"context", "passages"}, "make it part of a message"},
      {kChats, {"system_prompt", "system_message"}, "--columns system=FIELD"},
      {kAll, {"mask", "loss", "train"}, "expected none"},
      {{"alpaca", "sharegpt", "messages", "text"}, {"labels"}, "beside 'input_ids'"},
      {{"alpaca", "sharegpt", "messages", "text"}, {"assistant_masks", "completion_mask"}, "a record has 'weight'"},
      {{"text"}, {"num_prompt_tokens", "source_len", "prompt_length"}, "expected none: all of a text carries loss"},
      {{"tokens"}, {"num_prompt_tokens", "source_len", "prompt_length"}, "labels of -100, or 'loss_mask' with 0"},
      {{"tokens"}, {"assistant_mask", "assistantMask"}, "'loss_mask' has 1 for tokens"},
      {{"tokens"}, {"prompt_mask", "seq_lengths", "segment_ids", "doc_ids", "advantages"}, "expected none"}};
  for (const auto& c : cases) {
    for (const std::string& shape : c.shapes) {
      for (const std::string& key : c.keys) {
        for (const Json& value : {Json("x"), Json(0.5), Json(true), Json::array({"y"}), Json{{"b", 1}}}) {
          SCOPED_TRACE(shape + ", " + key + ": " + value.dump());
          EXPECT_TRUE(refused(with(kRecords.at(shape), key, value), "a.jsonl, line 1, key '" + key + "': found "));
          EXPECT_TRUE(refused(with(kRecords.at(shape), key, value), c.part));
        }
      }
    }
  }
}

TEST_F(Shapes, KeysThatChangeNothingArePassedOver) {
  for (const std::string& shape : kAll) {
    const std::vector<std::string> plain = read(kRecords.at(shape));
    for (const char* key : {"id", "ID", "sample_id", "source", "score", "quality_score", "language", "metadata", "url",
                            "category", "license", "created_at", "model", "num_turns", "token_count"}) {
      EXPECT_EQ(read(with(kRecords.at(shape), key, "x")), plain) << shape << ", " << key;
      EXPECT_THAT(notes_, ElementsAre()) << shape << ", " << key;
    }
    // What is there in name alone.
    for (const char* key : {"tools", "chosen", "images", "system_prompt", "foo"}) {
      for (const Json& nothing : {Json(), Json(""), Json::array(), Json::object(), Json("[]")}) {
        EXPECT_EQ(read(with(kRecords.at(shape), key, nothing)), plain) << shape << ", " << key;
        EXPECT_THAT(notes_, ElementsAre()) << shape << ", " << key;
      }
    }
  }
}

TEST_F(Shapes, AnEndingIsHarmlessWithOneValueAndWithoutAWordOfLearning) {
  for (const std::string& shape : kAll) {
    const Json& record = kRecords.at(shape);
    const std::vector<std::string> plain = read(record);
    for (const char* key : {"loss_index", "num_turns_to_train", "weight_score", "trainSource", "mask_id", "split",
                            "num_examples", "response_index"}) {
      EXPECT_EQ(read(with(record, key, 3)), plain) << shape << ", " << key;
      EXPECT_THAT(notes_, ElementsAre(HasSubstr(fmt::format("keys ignored: \"{}\" (1 record)", key)))) << shape;
    }
    for (const char* key : {"sample_score", "turns", "quality_rating", "id", "n_turns"}) {
      for (const Json& value : {Json::array({1, 2}), Json{{"a", 1}}}) {
        EXPECT_EQ(read(with(record, key, value)), plain) << shape << ", " << key;
        EXPECT_THAT(notes_, ElementsAre(HasSubstr(fmt::format("keys ignored: \"{}\" (1 record)", key)))) << shape;
      }
      EXPECT_EQ(read(with(record, key, 2)), plain) << shape << ", " << key;
      EXPECT_THAT(notes_, ElementsAre()) << shape << ", " << key;
    }
    EXPECT_EQ(read(with(record, "metadata", Json{{"a", Json::array({1})}})), plain);
    EXPECT_THAT(notes_, ElementsAre());
  }
}

TEST_F(Shapes, AValueThatMeansAsUsualPasses) {
  for (const std::string& shape : kAll) {
    const Json& record = kRecords.at(shape);
    const std::vector<std::string> plain = read(record);
    for (const auto& [key, usual] : {std::pair("is_train", true), std::pair("should_train", true),
                                     std::pair("do_not_train", false), std::pair("parallel_tool_calls", false)}) {
      for (const Json& value : {Json(usual), Json(usual ? 1 : 0), Json(usual ? "True" : "0")}) {
        EXPECT_EQ(read(with(with(record, key, value), "tools", Json::array())), plain) << shape << ", " << key;
        EXPECT_THAT(notes_, ElementsAre()) << shape << ", " << key;
      }
      for (const Json& value : {Json(!usual), Json(usual ? 0 : 1), Json("maybe"), Json::array({usual})}) {
        EXPECT_TRUE(refused(with(record, key, value), fmt::format("key '{}': found ", key))) << shape;
      }
    }
  }
}

TEST_F(Shapes, UnknownKeysOfRecordsAreSaidOnceAFile) {
  for (const std::string& shape : kAll) {
    const Json& record = kRecords.at(shape);
    const std::vector<std::string> plain = read(record);
    const std::vector<std::string> got =
        read(std::vector{with(record, "foo", 1).dump(), record.dump(), with(with(record, "foo", 2), "bar", 0).dump()});
    EXPECT_EQ(got, (std::vector{plain[0], plain[0], plain[0]}));
    EXPECT_THAT(notes_,
                ElementsAre(options_.files[0].string() + R"(: keys ignored: "bar" (1 record), "foo" (2 records))"));
  }
}

TEST_F(Shapes, ARecordMayWeighNothing) {
  for (const std::string& shape : kAll) {
    const std::string plain = read(kRecords.at(shape))[0];
    std::string none = plain;
    std::erase(none, '|');
    for (const Json& weight : {Json(1), Json(1.0), Json(true), Json("1"), Json("1.0"), Json()}) {
      EXPECT_EQ(read(with(kRecords.at(shape), "weight", weight))[0], plain) << shape << weight;
    }
    for (const TrainOn train_on : {TrainOn::Assistant, TrainOn::All}) {
      options_.train_on = train_on;
      for (const Json& weight : {Json(0), Json(0.0), Json(false), Json("0"), Json("False")}) {
        EXPECT_EQ(read(with(kRecords.at(shape), "weight", weight))[0], none) << shape << weight;
      }
    }
    options_.train_on = TrainOn::Assistant;
    for (const Json& weight : {Json(2e6), Json("x"), Json("nan"), Json(""), Json::array({1})}) {
      EXPECT_TRUE(refused(with(kRecords.at(shape), "weight", weight), "key 'weight': found"));
      EXPECT_TRUE(refused(with(kRecords.at(shape), "weight", weight), "expected a number from -1e6 to 1e6"));
    }
  }
  options_.shape.columns = {{"weight", "w"}};
  EXPECT_THAT(read(R"({"text": "q", "w": 0})"), ElementsAre("^q>"));
}

// The weight of every label: a record's times its message's.
TEST_F(Shapes, TokensWeighWhatTheirRecordAndMessageSay) {
  const auto weights = [&](const Json& record) {
    read(record);
    std::vector<float> all;
    for_each_sample(options_, &encoder_, [&](const Sample& sample, const std::string&) {
      Dataset dataset;
      dataset.add(sample);
      std::vector<int32_t> labels(sample.ids.size());
      std::vector<float> of_tokens(sample.ids.size());
      dataset.labels(0, 0, labels);
      dataset.weights(0, 0, of_tokens);
      for (size_t i = 0; i < labels.size(); i++)
        if (labels[i] != kNoLabel) all.push_back(of_tokens[i]);
      EXPECT_EQ(dataset.loss_tokens(0, 0, std::ssize(sample.ids)), std::ssize(all));
    });
    return all;
  };
  for (const std::string& shape : kAll)
    for (const Json& weight : {Json(0.5), Json(-2), Json("0.25")})
      EXPECT_THAT(weights(with(kRecords.at(shape), "weight", weight)),
                  testing::Each(weight.is_string() ? 0.25f : weight.get<float>()))
          << shape << weight;
  for (const std::string& shape : kLists)
    EXPECT_THAT(weights(with(with_in_reply(kRecords.at(shape), "weight", 3), "weight", 0.5)), testing::Each(1.5f));
  const Json turns = Json::parse(
      R"({"messages": [{"role": "user", "content": "q", "weight": 7}, {"role": "assistant", "content": "a", "weight": 2},
                       {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]})");
  std::vector<float> all = weights(turns);
  ASSERT_EQ(all.size() % 2, 0u);
  for (size_t i = 0; i < all.size(); i++) EXPECT_EQ(all[i], i < all.size() / 2 ? 2 : 1) << i;
  EXPECT_TRUE(refused(with_in_reply(with_in_reply(kRecords.at("messages"), "weight", 2), "loss_weight", 3),
                      "what the message's other keys say"));
}

TEST_F(Shapes, ASystemTextAtTheTopIsOneTurn) {
  for (const std::string& shape : kChats) {
    EXPECT_THAT(read(with(kRecords.at(shape), "system", "s")),
                ElementsAre("<system\ns>\n<user\nq>\n<assistant\n|a>|\n"));
    EXPECT_THAT(read(with(kRecords.at(shape), "system", "")), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
    EXPECT_TRUE(refused(with(kRecords.at(shape), "system", 3), "key 'system': found 3, expected a string"));
  }
  EXPECT_TRUE(refused(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})",
                      "key 'system': found \"s\", expected none beside 'messages[0]', which is a system text too"));
  EXPECT_TRUE(
      refused(R"({"system": "s", "conversations": [{"from": "gpt", "value": "t"}, {"from": "system", "value": ""}]})",
              "beside 'conversations[1]'"));
}

// 200 keys with a meaning, in shapes, places, spellings and values drawn by the seed.
TEST_F(Shapes, NoRecordWithAMeaningfulKeyIsLearntFromInSilence) {
  std::istringstream words(
      "tools tool_calls function_call functions weight mask train loss label chosen rejected "
      "reasoning_content thinking thoughts image images audio video prefix documents context system_prompt "
      "labels margin kto_tag loss_mask masked trainable weights train_detail recipient channel tool_call_id "
      "instruction_2 style persona emotion response hint constraints few_shot examples answer completion "
      "output_format attention_mask_2d stop eos bos template chat_template_kwargs enable_thinking safety "
      "critique feedback");
  const std::vector<std::string> keys{std::istream_iterator<std::string>(words), {}};
  std::mt19937 draw(35);
  const auto below = [&](size_t n) { return draw() % n; };
  for (int i = 0; i < 200; ++i) {
    const std::string shape = kAll[below(kAll.size())];
    const bool in_message = (shape == "sharegpt" || shape == "messages") && below(2) == 1;
    std::string key = keys[below(keys.size())];
    const Json value = std::vector<Json>{0, 0.5, "x", true, Json::array({1, 2}), Json{{"a", "b"}}}[below(6)];
    const std::vector<std::string> plain = read(kRecords.at(shape));
    const Json record =
        in_message ? with_in_reply(kRecords.at(shape), key, value) : with(kRecords.at(shape), key, value);
    SCOPED_TRACE(record.dump());
    try {
      const std::vector<std::string> got = read(record);
      // To carry loss is what a reply does anyway, and a weight of 1.
      const bool agrees =
          (in_message && (key == "train" || key == "trainable" || key == "loss" || key == "loss_mask")) ||
          key == "weight";
      EXPECT_TRUE(got != plain || !notes_.empty() || (agrees && value == true) || (key == "masked" && value == 0));
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.jsonl, line 1, key '"));
      EXPECT_THAT(error.what(), HasSubstr(key));
    }
  }
}

// ---- Messages -------------------------------------------------------------------------------------------------------

TEST_F(Shapes, AMessageMaySayWhetherItCarriesLoss) {
  const std::string with_loss = "<user\nq>\n<assistant\n|a>|\n", without = "<user\nq>\n<assistant\na>\n";
  for (const std::string& shape : kLists) {
    for (const char* key : {"weight", "loss_weight", "train", "trainable", "loss", "loss_mask", "mask"}) {
      for (const Json& yes : {Json(true), Json(1), Json("1"), Json()}) {
        EXPECT_THAT(read(with_in_reply(kRecords.at(shape), key, yes)), ElementsAre(with_loss)) << key << yes;
      }
      for (const Json& no : {Json(false), Json(0), Json(0.0), Json("0")}) {
        EXPECT_THAT(read(with_in_reply(kRecords.at(shape), key, no)), ElementsAre(without)) << key << no;
      }
      for (const Json& other : {Json(0.5), Json("maybe"), Json::array({0, 4})}) {
        if (other == 0.5 && std::string_view(key).ends_with("weight")) continue;
        EXPECT_TRUE(refused(with_in_reply(kRecords.at(shape), key, other), "[1]." + std::string(key) + "': found"));
      }
    }
    EXPECT_THAT(read(with_in_reply(kRecords.at(shape), "masked", true)), ElementsAre(without));
    EXPECT_THAT(read(with_in_reply(kRecords.at(shape), "masked", false)), ElementsAre(with_loss));
    EXPECT_TRUE(refused(with_in_reply(with_in_reply(kRecords.at(shape), "train", true), "weight", 0),
                        "what the message's other keys say of its loss"));
  }
}

TEST_F(Shapes, AMaskIsReadAsTrainIsAndTheFileSaysSo) {
  for (const std::string& shape : kLists) {
    const std::string list = kRecords.at(shape).begin().key();
    Json record = with_in_reply(kRecords.at(shape), "mask", false);
    record[list][0]["mask"] = true;
    const std::vector<std::string> got = read(std::vector{record.dump(), kRecords.at(shape).dump()});
    EXPECT_THAT(got, ElementsAre("<user\n|q>|\n<assistant\na>\n", "<user\nq>\n<assistant\n|a>|\n"));
    EXPECT_THAT(notes_, ElementsAre(options_.files[0].string() +
                                    ": 1 record has messages with 'mask': where it is true a message carries loss; "
                                    "'masked' is the other way round"));
    for (const char* key : {"train", "loss"}) {
      record[list][1][key] = true;
      EXPECT_TRUE(refused(record, "[1].mask': found false, expected what the message's other keys say of its loss"));
      record[list][1].erase(key);
    }
    record[list][1]["masked"] = false;
    EXPECT_TRUE(refused(record, "[1].masked': found false"));
    // A table has the column in every message.
    EXPECT_THAT(read(with_in_reply(kRecords.at(shape), "mask", nullptr)), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
    EXPECT_THAT(notes_, ElementsAre());
  }
}

TEST_F(Shapes, AWeightOfOneDoesNotMakeAUsersTurnCarryLossAndTrainDoes) {
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "content": "q", "weight": 1}]})"), ElementsAre("<user\nq>\n"));
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "content": "q", "train": true}]})"), ElementsAre("<user\n|q>|\n"));
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "content": "q", "train": false}]})"), ElementsAre("<user\nq>\n"));
  options_.train_on = TrainOn::All;
  EXPECT_THAT(
      read(R"({"messages": [{"role": "user", "content": "q", "weight": 0}, {"role": "assistant", "content": "a"}]})"),
      ElementsAre("<|user\n|q>|\n<assistant\na>\n|"));
}

TEST_F(Shapes, UnknownKeysOfMessagesAreRefused) {
  for (const std::string& shape : kLists) {
    for (const char* key : {"foo", "tool_calls", "tool_call_id", "images", "prefix", "recipient", "refusal"}) {
      EXPECT_TRUE(refused(with_in_reply(kRecords.at(shape), key, "x"), "[1]." + std::string(key) + "': found \"x\""));
      EXPECT_THAT(read(with_in_reply(kRecords.at(shape), key, nullptr)), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
    }
    EXPECT_THAT(read(with_in_reply(kRecords.at(shape), "prefix", false)), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
    for (const char* key : {"loss_rating", "weight_score", "train_index", "is_train", "do_not_train", "mask_id"}) {
      for (const Json& value : {Json(true), Json(false), Json(3)}) {
        EXPECT_TRUE(refused(with_in_reply(kRecords.at(shape), key, value), "[1]." + std::string(key) + "': found "));
      }
    }
    EXPECT_TRUE(refused(with_in_reply(kRecords.at(shape), "turn_id", Json::array({1})), "[1].turn_id': found [1]"));
    for (const char* key : {"id", "timestamp", "language", "turn_id", "toxic"}) {
      EXPECT_THAT(read(with_in_reply(kRecords.at(shape), key, 7)), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
      EXPECT_THAT(notes_, ElementsAre());
    }
    Json named = with_in_reply(kRecords.at(shape), "name", "Ann");
    const std::string list = named.begin().key();
    named[list][0]["name"] = "Bob";
    EXPECT_THAT(read(named), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
    EXPECT_THAT(notes_, ElementsAre(HasSubstr(": keys ignored: \"" + list + "[].name\" (1 record)")));
  }
}

TEST_F(Shapes, RolesAreThoseOfEitherListAndThoseThatAreNamed) {
  EXPECT_THAT(read(R"({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
              ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(read(R"({"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})"),
              ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  const char* named = R"({"messages": [{"role": "Customer", "content": "q"}, {"role": "bing", "content": "a"}]})";
  EXPECT_TRUE(refused(named,
                      "key 'messages[0].role': found \"Customer\", expected system, user or human, assistant or "
                      "gpt, tool, function or observation, developer; --roles NAME=ROLE names others"));
  options_.shape.roles = {{"Customer", ChatRole::User}};
  EXPECT_TRUE(refused(named, "key 'messages[1].role': found \"bing\", expected system, user or human"));
  options_.shape.roles["bing"] = ChatRole::Assistant;
  EXPECT_THAT(read(named), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  options_.shape.roles["Bot"] = ChatRole::Assistant;
  EXPECT_TRUE(refused(named, "a.jsonl: found no message of the role 'Bot', expected it as --roles names it"));
  EXPECT_TRUE(refused(R"({"text": "Bot"})", "found no message of the role 'Bot'"));
  EXPECT_TRUE(fails_with<UserError>([] { role_from_name("bot"); }, "roles: found 'bot', expected system, user"));
}

TEST_F(Shapes, APromptAndItsCompletionAreOneConversationWithLossOnTheCompletion) {
  const Json record = Json::parse(
      R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user",
          "content": "r"}], "completion": [{"role": "assistant", "content": "b"}]})");
  const std::string whole = "<user\nq>\n<assistant\na>\n<user\nr>\n<assistant\n|b>|\n";
  EXPECT_THAT(read(record), ElementsAre(whole));
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_THAT(read(with(record, "system", "s")), ElementsAre("<system\ns>\n" + whole));
  EXPECT_THAT(read(with(record, "weight", 0)), ElementsAre("<user\nq>\n<assistant\na>\n<user\nr>\n<assistant\nb>\n"));
  Json trained = record;
  trained["prompt"][1]["train"] = true;
  EXPECT_THAT(read(trained), ElementsAre("<user\nq>\n<assistant\n|a>|\n<user\nr>\n<assistant\n|b>|\n"));
  EXPECT_TRUE(refused(with(record, "chosen", "x"), "none with --objective sft or distill"));
  trained["completion"][0]["foo"] = 1;
  EXPECT_TRUE(refused(trained, "key 'completion[0].foo'"));
  // Beside messages they are fields like others.
  EXPECT_THAT(read(with(record, "messages", kRecords.at("messages")["messages"])),
              ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr(R"("completion" (1 record), "prompt" (1 record))")));
  options_.train_on = TrainOn::All;  // which takes what is between messages too
  EXPECT_THAT(read(record), ElementsAre("<|user\n|q>|\n<assistant\n|a>|\n<user\n|r>|\n<assistant\nb>\n|"));
}

TEST_F(Shapes, EmptyRepliesAreCounted) {
  EXPECT_THAT(read(std::vector<std::string>{R"({"instruction": "q", "output": ""})",
                                            R"({"instruction": "q", "output": "", "weight": 0})"}),
              ElementsAre("<user\nq>\n<assistant\n|>|\n", "<user\nq>\n<assistant\n>\n"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: 1 reply is empty: to end at once is what is taught")));
}

TEST_F(Shapes, PartsOfAMessageAreTextAlone) {
  const auto message = [](const std::string& part) {
    return R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, )" + part + "]}]}";
  };
  EXPECT_THAT(read(message(R"({"type": "text", "text": "b", "image": null})").c_str()), ElementsAre("<user\nab>\n"));
  EXPECT_THAT(read(message(R"({"type": "text", "value": "b"})").c_str()), ElementsAre("<user\nab>\n"));
  EXPECT_TRUE(refused(message(R"({"type": "text", "text": "b", "value": "c"})").c_str(), "key 'content[1].value'"));
  EXPECT_TRUE(refused(message(R"({"type": "image_url", "image_url": {"url": "x"}})").c_str(),
                      "expected \"text\": the model takes no images"));
  EXPECT_TRUE(refused(message(R"({"type": "text", "text": "b", "image": "x"})").c_str(), "key 'content[1].image'"));
  EXPECT_TRUE(
      refused(message(R"({"type": "thinking", "thinking": "x"})").c_str(),
              "key 'content[1].type': found \"thinking\", expected \"text\": other parts are not rendered yet"));
  EXPECT_TRUE(refused(message(R"({"type": "text", "text": "b", "foo": 1})").c_str(), "key 'content[1].foo'"));
}

TEST_F(Shapes, ThinkingInAReplyIsAPartOfItWhereTheTemplateKnowsNothingOfIt) {
  const char* record =
      R"({"messages": [{"role": "user", "content": "<think>q"}, {"role": "assistant", "content": "<think>t</think>a"}]})";
  EXPECT_THAT(read(record), ElementsAre("<user\n<think>q>\n<assistant\n|<think>t</think>a>|\n"));
}

// ---- Tokens ---------------------------------------------------------------------------------------------------------

TEST_F(Shapes, MasksBesideTokensAreHonoured) {
  const auto record = [](const std::string& more) { return R"({"input_ids": [65, 66, 67, 68, 69], )" + more + "}"; };
  const auto got = [&](const std::string& more) { return read(record(more).c_str()); };
  EXPECT_THAT(got(R"("attention_mask": [1, 1, 1, 1, 1])"), ElementsAre("A|BCDE|"));
  EXPECT_THAT(got(R"("attention_mask": [1, 1, 1, 0, 0])"), ElementsAre("A|BC|"));
  EXPECT_THAT(got(R"("attention_mask": [0, 1, 1, 1, 0])"), ElementsAre("B|CD|"));
  EXPECT_THAT(got(R"("attention_mask": [0, 0, 1, 1, 1], "labels": [-100, -100, 67, -100, 69])"), ElementsAre("CD|E|"));
  EXPECT_THAT(got(R"("completion_mask": [0, 0, 1, 1, 0])"), ElementsAre("AB|CD|E"));
  EXPECT_THAT(got(R"("assistant_masks": [0, 1, 0, true, false])"), ElementsAre("A|B|C|D|E"));
  EXPECT_THAT(got(R"("loss_mask": [1, 0, 0, 1, 1], "completion_mask": [1, 1, 1, 1, 0])"), ElementsAre("ABC|D|E"));
  EXPECT_THAT(got(R"("token_type_ids": [0, 0, 0, 0, 0], "special_tokens_mask": [1, 0, 0, 0, 1])"),
              ElementsAre("A|BCDE|"));
  EXPECT_THAT(got(R"("position_ids": [0, 1, 2, 3, 4])"), ElementsAre("A|BCDE|"));
  EXPECT_THAT(got(R"("position_ids": [0, 1, 0, 1, 2])"), ElementsAre("A|B|", "C|DE|"));
  EXPECT_THAT(got(R"("position_ids": [1, 1, 0, 1, 0], "attention_mask": [0, 0, 1, 1, 1])"), ElementsAre("C|D|", "E"));
}

TEST_F(Shapes, MasksBesideTokensThatCannotBeHonouredAreRefused) {
  const auto says = [&](const std::string& more, std::string_view part) {
    return refused((R"({"input_ids": [65, 66, 67], )" + more + "}").c_str(), part);
  };
  for (const char* key : {"attention_mask", "completion_mask", "assistant_masks", "loss_mask", "position_ids",
                          "token_type_ids", "labels"}) {
    EXPECT_TRUE(says(fmt::format("\"{}\": [0, 0]", key), fmt::format("key '{}': found [0,0], expected 3 values", key)));
    EXPECT_TRUE(says(fmt::format("\"{}\": 1", key), fmt::format("key '{}': found 1, expected a list", key)));
    EXPECT_TRUE(says(fmt::format("\"{}\": [0, 0.5, 1]", key), fmt::format("key '{}[1]': found 0.5", key)));
  }
  EXPECT_TRUE(says(R"("attention_mask": [1, 0, 1])", "expected 0 at its ends alone"));
  EXPECT_TRUE(says(R"("attention_mask": [0, 0, 0])", "expected at least one 1"));
  EXPECT_TRUE(says(R"("attention_mask": [1, 1, 2])", "key 'attention_mask[2]': found 2, expected 0 or 1"));
  EXPECT_TRUE(says(R"("position_ids": [0, 2, 3])", "key 'position_ids[1]': found 2, expected 1: each document has"));
  EXPECT_TRUE(says(R"("position_ids": [1, 2, 3])", "key 'position_ids[0]': found 1, expected 0"));
  EXPECT_TRUE(says(R"("token_type_ids": [0, 1, 1])", "key 'token_type_ids[1]': found 1, expected 0 alone"));
}

TEST_F(Shapes, ListsOfAValueATokenThatNobodyKnowsAreRefused) {
  const Json& record = kRecords.at("tokens");
  for (const char* key : {"sequence_id", "document_id", "segment_id", "seq_idx", "doc_ids", "sequence_ids"}) {
    EXPECT_TRUE(refused(with(record, key, {0, 0, 1}), "'position_ids' that begin again at 0 say where documents begin"))
        << key;
  }
  EXPECT_THAT(read(with(record, "document_id", "d-7")), ElementsAre("A|BC|"));
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_TRUE(refused(with(record, "foo", {0, 0, 1}), "key 'foo': found [0,0,1], expected no list of a value a token"));
  EXPECT_THAT(read(with(record, "foo", {0, 0, 1, 1})), ElementsAre("A|BC|"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("keys ignored: \"foo\"")));
}

// ---- BOS and EOS ----------------------------------------------------------------------------------------------------

TEST_F(Shapes, WhatTheTextHasAlreadyIsNotAddedAgain) {
  EXPECT_THAT(read(R"({"text": "q<|im_end|>"})"), ElementsAre("^|q>|"));
  EXPECT_THAT(read(R"({"text": "q<|im_end|>\n "})"), ElementsAre("^|q>|"));
  EXPECT_THAT(read(R"({"text": "<s>q"})"), ElementsAre("^|q>|"));
  EXPECT_THAT(read(R"({"text": "q<|im_end|>r"})"), ElementsAre("^|q>r>|"));
  EXPECT_THAT(read(R"({"instruction": "q", "output": "a<|im_end|>"})"), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_THAT(read(R"({"text": "q<|im_end|><|im_end|>"})"), ElementsAre("^|q>|"));
  EXPECT_THAT(notes_,
              ElementsAre(HasSubstr("a.jsonl: 1 record has a text with more than one end, or the tokenizer's")));
  encoder_.special.eos = "<|endoftext|>";
  const char* ends[] = {R"({"instruction": "q", "output": "a<|endoftext|>"})",
                        R"({"instruction": "q", "output": "a<|endoftext|><|im_end|>"})"};
  for (const char* record : ends) {
    EXPECT_THAT(read(record), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
    EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: 1 record has a text with more than one end")));
  }
  encoder_ = byte_encoder();
  options_.prompt_format.chat = ChatTemplate::choose("none", "", byte_encoder().special);
  EXPECT_THAT(read(R"({"instruction": "q", "output": "a<|im_end|>"})"), ElementsAre("^q|a>|"));
  EXPECT_THAT(read(R"({"instruction": "<s>q", "output": "a"})"), ElementsAre("^q|a>|"));
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_THAT(read(R"({"text": "<s><s> <s>q"})"), ElementsAre("^|q>|"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: 1 record begins with BOS more than once: one is left")));
  EXPECT_THAT(read(R"({"instruction": "<s><s>q", "output": "a"})"), ElementsAre("^q|a>|"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: 1 record begins with BOS more than once: one is left")));
  EXPECT_THAT(read(R"({"input_ids": [258, 258, 65, 257, 257]})"), ElementsAre("^|^A>>|"));
}

}  // namespace
}  // namespace snug
