// Pairs of replies and replies with labels, in every shape in which they come.
#include "data/preferences.h"

#include <map>

#include "format/tokenizer.h"
#include "shapes_fixture.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class Preferences : public Shapes {
 protected:
  Preferences() { options_.shape.samples = Samples::Pairs; }

  // What the samples of one record are with other samples.
  std::vector<std::string> read_as(Samples samples, const std::string& record) {
    options_.shape.samples = samples;
    return read(std::vector{record});
  }
  std::string said() const { return fmt::format("{}", fmt::join(notes_, "\n")); }
};

constexpr const char* kChat = "<user\nq>\n<assistant\n|a>|\n // <user\nq>\n<assistant\n|b>|\n";

// ---- Pairs ----------------------------------------------------------------------------------------------------------

TEST_F(Preferences, TextsAreRawAndHaveTheirEnds) {
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), ElementsAre("^q|a>| // ^q|b>|"));
  EXPECT_THAT(said(), HasSubstr("a.jsonl: prompts and replies are texts, taken as they are, without the chat template "
                                "(1 record); --columns instruction=prompt makes turns of them"));
  EXPECT_THAT(read(R"({"prompt": "<s>q", "chosen": "a<|im_end|>", "rejected": ""})"), ElementsAre("^q|a>| // ^q|>|"));
  EXPECT_THAT(said(), HasSubstr("1 reply is empty"));
  EXPECT_THAT(read(R"({"prompt": "", "chosen": "a", "rejected": "b"})"), ElementsAre("^|a>| // ^|b>|"));
  options_.shape.columns = {{"instruction", "prompt"}};
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), ElementsAre(kChat));
  EXPECT_THAT(notes_, SizeIs(0));
}

TEST_F(Preferences, WithoutAPromptItIsWhatTheTokensBeginWith) {
  EXPECT_THAT(read(R"({"chosen": "It is blue", "rejected": "It is bright"})"),
              ElementsAre("^It is b|lue>| // ^It is b|right>|"));
  EXPECT_THAT(said(), HasSubstr("the tokens with which both replies begin are taken for it, and carry no loss (1 rec"));
  // Of a tokenizer that has words these are tokens, not letters; of equal texts the end is left.
  encoder_.encode = [](std::string_view text) {
    std::vector<int32_t> ids;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(' ', begin + 1), text.size());
      ids.push_back(static_cast<unsigned char>(text[end - 1]));  // a word is its last letter
      begin = end;
    }
    return ids;
  };
  EXPECT_THAT(read(R"({"chosen": "It is blue", "rejected": "It is bright"})"), ElementsAre("^ts|e>| // ^ts|t>|"));
  EXPECT_THAT(read(R"({"chosen": "It is", "rejected": "It is"})"), ElementsAre("^ts|>| // ^ts|>|"));
}

TEST_F(Preferences, LossBeginsWhereEitherReplyPartsFromThePrompt) {
  encoder_.encode = [](std::string_view text) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.substr(i, 2) == "ab";  // one token
      ids.push_back(pair ? 'X' : static_cast<unsigned char>(text[i]));
      i += pair;
    }
    return ids;
  };
  EXPECT_THAT(read(R"({"prompt": "qa", "chosen": "bc", "rejected": "d"})"), ElementsAre("^q|Xc>| // ^q|ad>|"));
  EXPECT_THAT(said(), HasSubstr("a token holds the end of the prompt and the beginning of a reply: loss begins with "
                                "it (1 record)"));
}

TEST_F(Preferences, ShapesOfConversationsAreOne) {
  const char* records[] = {
      // TRL's messages, with the prompt and within whole conversations
      R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "a"}],
          "rejected": [{"role": "assistant", "content": "b"}]})",
      R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
          "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})",
      R"({"prompt": "q", "prompt_id": "7", "messages": [{"role": "user", "content": "q"}, {"role": "assistant",
          "content": "a"}], "score_chosen": 8.5, "score_rejected": 2, "chosen": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "a"}], "rejected": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "b"}]})",
      // LLaMA-Factory's
      R"({"instruction": "q", "input": "", "chosen": "a", "rejected": "b"})",
      R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "a"},
          "rejected": {"from": "gpt", "value": "b"}})",
      R"({"chosen_messages": [{"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
          {"role": "assistant", "content": [{"type": "text", "value": "a"}], "loss_weight": 1.0}],
          "rejected_messages": [{"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
          {"role": "assistant", "content": [{"type": "text", "value": "b"}], "loss_weight": 1.0}]})",
      // axolotl's
      R"({"question": "q", "chosen": "a", "rejected": "b"})",
      R"({"input": "q", "chosen": "a", "rejected": "b"})",
      R"({"prompt": "q", "chosen_response": "a", "rejected_response": "b"})",
      R"({"messages": [{"role": "user", "content": "q"}], "chosen": {"role": "assistant", "content": "a"},
          "rejected": {"role": "assistant", "content": "b"}})",
      // transcripts
      R"({"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"})",
      R"({"prompt": " \n\nHuman: q\n\nAssistant:", "chosen": " a", "rejected": "b "})",
  };
  for (const char* record : records) {
    const std::vector<std::string> got = read(record);
    ASSERT_THAT(got, SizeIs(1)) << record;
    EXPECT_EQ(got[0], kChat) << record;
    EXPECT_THAT(said(), testing::Not(HasSubstr("score"))) << record;
  }
}

TEST_F(Preferences, WhatWasSettledIsSaid) {
  const std::string whole = R"("chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
      "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}])";
  std::string line = "{" + whole + "}";
  std::erase(line, '\n');
  EXPECT_THAT(read(std::vector{line, line}), ElementsAre(kChat, kChat));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: both replies are whole conversations: the messages with which "
                                            "both begin are the prompt (2 records)")));
  line = R"({"prompt": "q", )" + whole + "}";
  std::erase(line, '\n');
  EXPECT_THAT(read(std::vector{line}), ElementsAre(kChat));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("the prompt beside them is passed over (1 record)")));
  line = R"({"prompt": [{"role": "user", "content": "q"}], )" + whole + "}";
  std::erase(line, '\n');
  EXPECT_THAT(read(std::vector{line}), ElementsAre(kChat));
  EXPECT_THAT(notes_, ElementsAre());
  line = R"({"prompt": [{"role": "system", "content": "s"}], )" + whole + "}";
  std::erase(line, '\n');
  EXPECT_THAT(read(std::vector{line}), ElementsAre("<system\ns>\n<user\nq>\n<assistant\n|a>|\n // "
                                                   "<system\ns>\n<user\nq>\n<assistant\n|b>|\n"));
  read(R"({"chosen": "Human: q\n\nAssistant: a", "rejected": "Human: q\n\nAssistant: b"})");
  EXPECT_THAT(said(), HasSubstr("transcripts of Human and Assistant became turns (1 record)"));
}

TEST_F(Preferences, TheLastReplyAloneCarriesLoss) {
  EXPECT_THAT(read(R"({"instruction": "q", "input": "i", "system": "s", "history": [["x", "y"]], "chosen": "a",
                       "rejected": "b"})"),
              ElementsAre("<system\ns>\n<user\nx>\n<assistant\ny>\n<user\nq\ni>\n<assistant\n|a>|\n // "
                          "<system\ns>\n<user\nx>\n<assistant\ny>\n<user\nq\ni>\n<assistant\n|b>|\n"));
  EXPECT_THAT(read(R"({"system": "s", "prompt": "q", "chosen": "a", "rejected": "b"})"),
              ElementsAre("<system\ns>\n<user\nq>\n<assistant\n|a>|\n // <system\ns>\n<user\nq>\n<assistant\n|b>|\n"));
  EXPECT_THAT(read(R"({"chosen": "\n\nHuman: q\n\nAssistant: x\n\nHuman: r\n\nAssistant: a<|im_end|>",
               "rejected": "\n\nHuman: q\n\nAssistant: x\n\nHuman: r\n\nAssistant:"})"),
              ElementsAre("<user\nq>\n<assistant\nx>\n<user\nr>\n<assistant\n|a>|\n // "
                          "<user\nq>\n<assistant\nx>\n<user\nr>\n<assistant\n|>|\n"));
  EXPECT_THAT(
      read(R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x", "train": true},
                       {"role": "user", "content": "r"}], "chosen": "a", "rejected": "b"})"),
      ElementsAre(HasSubstr("<assistant\nx>\n<user\nr>\n<assistant\n|a>|\n // ")));
  EXPECT_THAT(said(), HasSubstr("messages of the prompt say that they carry loss: in preferences only replies do"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": [{"role": "assistant", "content": "a", "weight": 0}],
                          "rejected": "b"})",
                      "key 'chosen': found a message that carries no loss"));
}

TEST_F(Preferences, ConversationsMayPartBeforeTheirLastReply) {
  EXPECT_THAT(read(R"({"chosen": "\n\nHuman: q\n\nAssistant: x\n\nHuman: r\n\nAssistant: a",
                       "rejected": "\n\nHuman: q\n\nAssistant: y\n\nHuman: t\n\nAssistant: b"})"),
              ElementsAre("<user\nq>\n<assistant\n|x>|\n<user\nr>\n<assistant\n|a>|\n // "
                          "<user\nq>\n<assistant\n|y>|\n<user\nt>\n<assistant\n|b>|\n"));
  EXPECT_THAT(said(),
              HasSubstr("conversations part before their last reply: every reply behind what they share carries "
                        "loss (1 record)"));
  // Behind unlike questions labels begin where each reply does.
  EXPECT_THAT(read(R"({"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: r\n\nAssistant: b"})"),
              ElementsAre("<user\nq>\n<assistant\n|a>|\n // <user\nr>\n<assistant\n|b>|\n"));
  // A conversation that goes on, beside its beginning.
  EXPECT_THAT(
      read(R"({"chosen": "\n\nHuman: q\n\nAssistant: a",
                       "rejected": "\n\nHuman: q\n\nAssistant: a\n\nHuman: r\n\nAssistant: b"})"),
      ElementsAre("<user\nq>\n<assistant\n|a>|\n // <user\nq>\n<assistant\n|a>|\n<user\nr>\n<assistant\n|b>|\n"));
}

TEST_F(Preferences, LabelsBeginAlikeInBothHalves) {
  std::vector<TokenSample> halves = {{{1, 2, 3, 4, 5}, {-100, -100, 3, 4, 5}},
                                     {{1, 2, 3, 6, 7}, {-100, -100, -100, 6, 7}}};
  align_labels(halves);
  EXPECT_THAT(halves[0].labels, ElementsAre(-100, -100, 3, 4, 5));
  EXPECT_THAT(halves[1].labels, ElementsAre(-100, -100, 3, 6, 7));
  halves = {{{1, 2, 3, 4}, {-100, -100, -100, 4}}, {{1, 9, 3, 4}, {-100, -100, -100, 4}}};
  align_labels(halves);  // the prompts part before
  EXPECT_THAT(halves[0].labels, ElementsAre(-100, 2, 3, 4));
  halves = {{{1, 2}, {-100, -100}}, {{1, 2, 3}, {-100, -100, 3}}};
  align_labels(halves);  // nothing carries loss in one
  EXPECT_THAT(halves[0].labels, ElementsAre(-100, -100));
}

TEST_F(Preferences, CallsAreRenderedInRepliesOfEitherForm) {
  options_.prompt_format.chat = ChatTemplate::choose(
      "auto",
      "{{ tools | tojson if tools else '' }}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
      "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<|im_end|>{% endfor %}",
      byte_encoder().special);
  const std::string call = R"("tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2}}}])";
  for (const std::string& reply :
       {R"({"role": "assistant", "content": "", )" + call + "}", R"([{"role": "assistant", )" + call + "}]"}) {
    const std::string record =
        R"({"prompt": "q", "tools": [{"name": "f"}], "chosen": )" + reply + R"(, "rejected": "b"})";
    EXPECT_THAT(read(std::vector{record}), ElementsAre(HasSubstr(R"("arguments": {"z": 1, "a": 2})"))) << record;
  }
}

TEST_F(Preferences, ScoresChooseTheBestAndTheWorst) {
  const char* record = R"({"prompt": "q", "completions": ["x", "a", "b", "y", "z"], "scores": [2, 3.5, 1, 3.5, 1]})";
  EXPECT_THAT(read(record), ElementsAre("^q|a>| // ^q|b>|"));
  EXPECT_THAT(read_as(Samples::Judged, record), ElementsAre("^q|a>| = 1", "^q|b>| = 0"));
  EXPECT_THAT(read_as(Samples::PairsWithMargins,
                      R"({"prompt": [{"role": "user", "content": "q"}], "completions": ["x", "y", "z"],
                          "scores": [1, 3, 1]})"),
              ElementsAre("<user\nq>\n<assistant\n|y>|\n // <user\nq>\n<assistant\n|x>|\n = 2",
                          "<user\nq>\n<assistant\n|y>|\n // <user\nq>\n<assistant\n|z>|\n = 2"));
  options_.shape.samples = Samples::Pairs;
  EXPECT_THAT(read(std::vector<std::string>{R"({"prompt": "q", "completions": ["a", "b"], "scores": [1, 1]})", record}),
              SizeIs(1));
  EXPECT_THAT(said(), HasSubstr("all scores are equal: there is nothing to learn (1 record)"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "completions": ["a", "b"], "scores": [1]})",
                      "key 'scores': found [1], expected 2 numbers, as 'completions' has replies"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "completions": ["a", "b"], "scores": [1, "x"]})",
                      "key 'scores[1]': found \"x\", expected a number"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "completions": [], "scores": []})", "expected at least one reply"));
  EXPECT_TRUE(
      refused(R"({"prompt": "q", "completions": ["a", 3], "scores": [1, 2]})", "key 'completions[1]': found 3"));
  Json many{{"prompt", "q"}, {"completions", std::vector<std::string>(65, "a")}, {"scores", std::vector<int>(65, 1)}};
  options_.shape.samples = Samples::PairsWithMargins;
  EXPECT_TRUE(refused(many, "expected at most 64 replies"));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        std::ofstream(directory_.path() / "b.jsonl") << R"({"prompt": "q", "completions": ["a"], "scores": [1]})";
        options_.files = {directory_.path() / "b.jsonl"};
        load_dataset(options_, &encoder_);
      },
      "b.jsonl: found no sample, as no reply is better than another"));
}

TEST_F(Preferences, AMarginIsOfSamplesThatHaveMargins) {
  const std::string record = R"({"prompt": "q", "chosen": "a", "rejected": "b", "margin": )";
  EXPECT_THAT(read(std::vector{record + "0.5}"}), ElementsAre("^q|a>| // ^q|b>|"));
  options_.shape.samples = Samples::PairsWithMargins;
  EXPECT_THAT(read(std::vector{record + "0.5}", record + "\"2\"}", record + "null}"}),
              ElementsAre("^q|a>| // ^q|b>| = 0.5", "^q|a>| // ^q|b>| = 2", "^q|a>| // ^q|b>| = 0"));
  for (const char* wrong : {"true", "\"much\"", "[1]", "1e300", "\"nan\""})
    EXPECT_TRUE(refused(std::vector{record + wrong + "}"}, "key 'margin': found ")) << wrong;
  options_.shape.columns = {{"margin", "gap"}};
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "a", "rejected": "b", "gap": 3})"),
              ElementsAre("^q|a>| // ^q|b>| = 3"));
}

TEST_F(Preferences, TokenIdsOfAPairAreReadInEveryForm) {
  const char* labelled = R"({"chosen_input_ids": [65, 66, 67, 0], "chosen_attention_mask": [1, 1, 1, 0],
      "chosen_labels": [-100, -100, 67, -100], "rejected_input_ids": [65, 66, 68], "rejected_labels": [-100, -100, 68],
      "prompt_input_ids": [65, 66]})";
  EXPECT_THAT(read(labelled), ElementsAre("AB|C| // AB|D|"));
  EXPECT_THAT(read(R"({"prompt_ids": [65, 66], "chosen_ids": [67], "rejected_ids": [68, 69]})"),
              ElementsAre("AB|C| // AB|DE|"));
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_THAT(read(R"({"prompt_ids": [65], "chosen_ids": [67], "rejected_ids": [68], "chosen": "C"})"),
              ElementsAre("A|C| // A|D|"));
  EXPECT_THAT(said(), HasSubstr("keys ignored: \"chosen\" (1 record)"));
  EXPECT_THAT(read(R"({"chosen_ids": [65, 66, 67], "rejected_ids": [65, 66, 68, 69]})"),
              ElementsAre("AB|C| // AB|DE|"));
  EXPECT_THAT(said(), HasSubstr("the tokens with which both replies begin"));
  EXPECT_TRUE(refused(R"({"chosen_ids": [65]})", "key 'rejected_ids' is missing"));
  EXPECT_TRUE(refused(R"({"chosen_ids": [65, 300], "rejected_ids": [65, 66]})", "found token id 300, expected less"));
  EXPECT_TRUE(refused(R"({"chosen_ids": [], "rejected_ids": [65, 66]})", "expected at least one token id"));
  EXPECT_THAT(read_as(Samples::Judged, R"({"chosen_ids": [65, 66], "rejected_ids": [65, 68]})"),
              ElementsAre("A|B| = 1", "A|D| = 0"));
  EXPECT_THAT(read_as(Samples::Judged, R"({"input_ids": [65, 66], "labels": [-100, 66], "label": true})"),
              ElementsAre("A|B| = 1"));
  EXPECT_THAT(read_as(Samples::Judged, R"({"prompt_ids": [65], "completion_ids": [66], "label": 0})"),
              ElementsAre("A|B| = 0"));
  EXPECT_TRUE(refused(R"({"input_ids": [65, 66], "label": true})", "key 'labels' is missing"));
}

// ---- Labelled replies -----------------------------------------------------------------------------------------------

TEST_F(Preferences, RepliesWithALabelAreReadInEveryShape) {
  options_.shape.samples = Samples::Judged;
  EXPECT_THAT(read(std::vector<std::string>{R"({"prompt": "q", "completion": "a", "label": true})",
                                            R"({"prompt": "q", "completion": "b", "label": "False"})"}),
              ElementsAre("^q|a>| = 1", "^q|b>| = 0"));
  const std::string chat = "<user\nq>\n<assistant\n|a>|\n = 1";
  for (const char* record :
       {R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}],
            "label": true})",
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "kto_tag": true})",
        R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "label": 1})",
        R"({"instruction": "q", "input": "", "output": "a", "kto_tag": true})",
        R"({"question": "q", "completion": "a", "label": true})"})
    EXPECT_THAT(read(record), ElementsAre(chat)) << record;
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"},
                       {"role": "user", "content": "r"}, {"role": "assistant", "content": "a"}], "label": false})"),
              ElementsAre("<user\nq>\n<assistant\nx>\n<user\nr>\n<assistant\n|a>|\n = 0"));
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), ElementsAre("^q|a>| = 1", "^q|b>| = 0"));
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "a", "rejected": "a"})"), ElementsAre());
  EXPECT_THAT(said(), HasSubstr("both replies are equal: left out (1 record)"));
  options_.shape.columns = {{"completion", "response"}, {"label", "thumb"}};
  EXPECT_THAT(read(R"({"prompt": "q", "response": "a", "thumb": true})"), ElementsAre("^q|a>| = 1"));
  options_.shape.columns.clear();
  EXPECT_TRUE(refused(R"({"prompt": "q", "completion": "a", "label": 2})",
                      "key 'label': found 2, expected true or false: whether the reply is good"));
  EXPECT_TRUE(refused(R"({"completion": "a", "label": true})", "key 'prompt' is missing"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "label": true})", "key 'completion' is missing"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "completion": "a"})", "a prompt, its \"completion\" and a \"label\""));
  EXPECT_TRUE(refused(R"({"messages": [{"role": "user", "content": "q"}], "label": true})",
                      "key 'messages': found user at the end, expected an assistant's reply"));
}

// ---- What is refused ------------------------------------------------------------------------------------------------

TEST_F(Preferences, RecordsOfAnotherKindAreRefusedWithWhatHelps) {
  EXPECT_TRUE(
      refused(R"({"instruction": "q", "output": "a"})",
              "found the keys \"instruction\", \"output\", expected a pair of replies to one prompt, under "
              "\"chosen\" and \"rejected\", or \"completions\" and their \"scores\"; --objective sft learns from "
              "replies of which nothing is said"));
  EXPECT_TRUE(
      refused(R"({"prompt": "q", "completion": "a", "label": true})", "--objective kto learns from replies with"));
  EXPECT_TRUE(refused(R"({"question": "q", "preferred": "a", "dispreferred": "b"})",
                      "--columns chosen=preferred,rejected=dispreferred names them"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "a"})", "key 'rejected' is missing, found the keys"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "a", "rejected": null})", "key 'rejected': found null"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "a", "rejected": "b", "label": true})", "expected none"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "a", "rejected": "b", "images": ["x"]})",
                      "images in preferences are not supported yet"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "context": "c", "chosen": "a", "rejected": "b"})", "part of the prompt"));
  EXPECT_TRUE(refused(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                          "chosen": "a", "rejected": "b"})",
                      "key 'messages': found [{"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": 3, "rejected": "b"})", "key 'chosen': found 3"));
  EXPECT_TRUE(refused(R"({"chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant",
                          "content": "b"}]})",
                      "key 'prompt' is missing"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "[{'role': 'assistant', 'content': 'a'}]", "rejected": "b"})",
                      "messages written as JSON, which what Python prints is not"));
  const std::string raw = R"({"prompt": "q", "chosen": "a", "rejected": "b"})";
  EXPECT_TRUE(refused(std::vector{raw, std::string(R"({"question": "q", "chosen": "a", "rejected": "b"})")},
                      "line 2: found conversations, expected texts, as the file's first record has: one shape a file"));
  read(R"({"prompt": "q", "chosen": "a", "rejected": "b", "foo": 1})");
  EXPECT_THAT(said(), HasSubstr("keys ignored: \"foo\" (1 record)"));
}

TEST_F(Preferences, FormatsFollowTheObjective) {
  const std::string raw = R"({"prompt": "q", "chosen": "a", "rejected": "b"})";
  options_.format = DataFormat::Preference;
  EXPECT_THAT(read(std::vector{raw}), SizeIs(1));
  options_.format = DataFormat::Labelled;
  EXPECT_TRUE(refused(std::vector{raw}, "data_format: found labelled, expected preference: the objective learns from"));
  options_.format = DataFormat::Messages;
  EXPECT_TRUE(refused(std::vector{raw}, "data_format: found messages, expected preference"));
  options_.shape.samples = Samples::Replies;
  options_.format = DataFormat::Preference;
  EXPECT_TRUE(refused(std::vector{raw},
                      "data_format: found preference, expected another with --objective sft or distill: dpo"));
  options_.format.reset();
  EXPECT_TRUE(
      refused(std::vector{raw}, "key 'chosen': found \"a\", expected none with --objective sft or distill: dpo, orpo"));
  options_.shape.columns = {{"chosen", "a"}};
  EXPECT_TRUE(
      refused(std::vector{raw}, "columns: found 'chosen: a', which is a field of preferences; --objective dpo"));
  options_.shape.columns.clear();
  options_.shape.samples = Samples::Pairs;
  EXPECT_TRUE(fails_with<UserError>([&] { read_files({{"a.txt", "text"}}); }, "an objective on preferences expects"));
  EXPECT_EQ(samples_of(ObjectiveKind::Sft), Samples::Replies);
  EXPECT_EQ(samples_of(ObjectiveKind::Orpo), Samples::Pairs);
  EXPECT_EQ(samples_of(ObjectiveKind::Reward), Samples::PairsWithMargins);
  EXPECT_EQ(samples_of(ObjectiveKind::Kto), Samples::Judged);
}

TEST_F(Preferences, APatternAsksAndTablesHoldMessagesAsText) {
  options_.shape.prompt = "Q: {question}\n";
  EXPECT_THAT(read(R"({"question": "q", "chosen": "a", "rejected": "b"})"),
              ElementsAre(HasSubstr("<user\nQ: q\n>\n<assistant\n|a>|\n // ")));
  options_.shape.prompt.reset();
  const std::string list = R"([{""role"": ""assistant"", ""content"": ""a""}])";
  EXPECT_THAT(read_files({{"a.csv", "question,chosen,rejected\nq,\"" + list + "\",b\n"}}), ElementsAre(kChat));
  const std::string message = R"({""from"": ""gpt"", ""value"": ""a""})";
  EXPECT_THAT(read_files({{"a.csv", "question,chosen,rejected\nq,\"" + message + "\",b\n"}}), ElementsAre(kChat));
  EXPECT_THAT(read_files({{"a.csv", "prompt,chosen,rejected\nq,a,b\n"}}), ElementsAre("^q|a>| // ^q|b>|"));
  // JSON that is no message is a reply like any other; what Python prints of one is refused.
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "{\"role\": 1}", "rejected": "{\"content\": 2}"})"),
              ElementsAre("^q|{\"role\": 1}>| // ^q|{\"content\": 2}>|"));
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "{'role': 'assistant'}", "rejected": ""})", "what Python prints"));
  options_.shape.samples = Samples::Judged;
  EXPECT_THAT(read_files({{"a.csv", "prompt,completion,label\nq,a,True\n"}}), ElementsAre("^q|a>| = 1"));
}

TEST_F(Preferences, ARecordOfWeightZeroHasNoLabel) {
  EXPECT_THAT(read(R"({"prompt": "q", "chosen": "a", "rejected": "b", "weight": 0})"), ElementsAre("^qa> // ^qb>"));
}

TEST_F(Preferences, ThinkingOfEarlierTurnsIsDroppedOrKept) {
  const char* record = R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content":
      "<think>t</think>x"}, {"role": "user", "content": "r"}], "chosen": "a", "rejected": "b"})";
  EXPECT_THAT(read(record), ElementsAre(HasSubstr("<think>")));
  for (const Thinking thinking : {Thinking::Drop, Thinking::Last}) {
    options_.thinking = thinking;
    EXPECT_THAT(read(record), ElementsAre(testing::Not(HasSubstr("<think>"))));
  }
}

// ---- TRL ------------------------------------------------------------------------------------------------------------

size_t first_label(std::span<const int32_t> labels) {
  size_t i = 0;
  while (i < labels.size() && labels[i] == kNoLabel) ++i;
  return i;
}

// Token ids are TRL's, and so is where loss begins, except that the first token of a document has none. It ends with
// the reply's end of turn, where TRL has the newline behind it too. Of a pair that becomes two labelled replies labels
// begin alike.
TEST_F(Preferences, TokensAndLossAreThoseOfTrl) {
  std::ifstream file(std::string(SNUG_FIXTURES) + "/preferences.json");
  std::ifstream jinja(std::string(SNUG_FIXTURES) + "/templates/smollm2.jinja");
  const std::string chat{std::istreambuf_iterator<char>(jinja), {}};
  const Json cases = Json::parse(file);
  ASSERT_THAT(cases, SizeIs(8));
  for (const Json& c : cases) {
    const Tokenizer tokenizer =
        Tokenizer::load(std::string(SNUG_FIXTURES) + "/tokenizer/" + c["family"].get<std::string>());
    encoder_ = encoder_of(tokenizer);
    options_.vocabulary = 1 << 20;
    options_.prompt_format.chat = ChatTemplate::choose("auto", chat, encoder_.special);
    options_.shape.samples = c["trainer"] == "kto"      ? Samples::Judged
                             : c["trainer"] == "reward" ? Samples::PairsWithMargins
                                                        : Samples::Pairs;
    std::ofstream records(directory_.path() / "trl.jsonl");
    for (const Json& record : c["records"]) records << record.dump() << "\n";
    records.close();
    options_.files = {directory_.path() / "trl.jsonl"};
    std::vector<Sample> samples;
    for_each_sample(options_, &encoder_, [&](const Sample& sample, const std::string&) { samples.push_back(sample); });
    const Json& expected = c["expected"];
    ASSERT_EQ(samples.size(), expected.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      SCOPED_TRACE(c["family"].dump() + c["trainer"].dump() + c["records"][i].dump());
      const Sample& sample = samples[i];
      const std::span<const int32_t> ids(sample.ids), labels(sample.labels);
      const size_t first = sample.second > 0 ? sample.second : ids.size();
      const auto begins = [&](std::span<const int32_t> half) {
        if (!expected[i].contains("begin")) return;
        EXPECT_EQ(first_label(half), std::max<size_t>(expected[i]["begin"].get<size_t>(), 1));
        EXPECT_THAT(half.subspan(first_label(half), half.size() - first_label(half) - 1),
                    testing::Not(testing::Contains(kNoLabel)));
      };
      begins(labels.first(first));
      EXPECT_EQ(Json(ids.first(first)), expected[i].contains("ids") ? expected[i]["ids"] : expected[i]["chosen"]);
      if (sample.second > 0) {
        begins(labels.subspan(first));
        EXPECT_EQ(Json(ids.subspan(first)), expected[i]["rejected"]);
      }
      if (expected[i].contains("label")) {
        EXPECT_EQ(sample.value, expected[i]["label"].get<bool>() ? 1.0f : 0.0f);
      }
      if (expected[i].contains("margin")) {
        EXPECT_EQ(sample.value, expected[i]["margin"].get<float>());
      }
      const bool turns = c["records"][i].contains("chosen") && !c["records"][i]["chosen"].is_string();
      EXPECT_EQ(labels.back(), turns ? kNoLabel : ids.back());
    }
  }
}

}  // namespace
}  // namespace snug
