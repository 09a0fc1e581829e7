#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "byte_encoder.h"
#include "data/records.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Data : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view text) {
    const std::filesystem::path path = directory_.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  DataOptions options(const std::string& name, std::string_view text) {
    DataOptions out;
    out.files = {write(name, text)};
    out.prompt_format.chat = ChatTemplate::choose("chatml", "", byte_encoder().special);
    out.vocabulary = 259;
    return out;
  }
  // Bytes as themselves, the special tokens as <, > and ^, stretches with loss between bars.
  static std::string shown(const Sample& sample) {
    std::string out;
    bool loss = false;
    for (size_t i = 0; i < sample.ids.size(); ++i) {
      const int32_t id = sample.ids[i], label = sample.labels[i];
      EXPECT_TRUE(label == kNoLabel || label == id);
      if ((label != kNoLabel) != loss) out += '|';
      loss = label != kNoLabel;
      out += id == kStart ? '<' : id == kEnd ? '>' : id == kBos ? '^' : static_cast<char>(id);
    }
    return loss ? out + '|' : out;
  }
  std::vector<std::string> all(const DataOptions& options) {
    std::vector<std::string> out;
    const TextEncoder encoder = byte_encoder();
    for_each_sample(options, &encoder, [&](const Sample& sample, const std::string&) { out.push_back(shown(sample)); });
    return out;
  }
  testing::AssertionResult refused(const DataOptions& options, std::string_view part) {
    return fails_with<UserError>([&] { all(options); }, part);
  }
  testing::AssertionResult refused(const std::string& name, std::string_view text, std::string_view part) {
    return refused(options(name, text), part);
  }

  TempDirectory directory_;
};

// ---- Records --------------------------------------------------------------------------------------------------------

std::vector<std::string> records_of(const std::filesystem::path& path, const RecordOptions& options = {}) {
  RecordReader reader(path, options);
  std::vector<std::string> out;
  for (Record record; reader.next(record);) {
    out.push_back(record.place.substr(record.place.find(',') + 2) + ": " + record.text);
  }
  return out;
}

TEST_F(Data, LinesAreRecordsAndEmptyOnesAreNot) {
  EXPECT_THAT(records_of(write("a.jsonl", "{\"a\":1}\n\n  \r\n{\"b\":2}\r\n{}")),
              ElementsAre("line 1: {\"a\":1}", "line 4: {\"b\":2}", "line 5: {}"));
  EXPECT_THAT(records_of(write("a.jsonl", "\xef\xbb\xbf{}\n")), ElementsAre("line 1: {}"));
  EXPECT_THAT(records_of(write("a.jsonl", "")), ElementsAre());
}

TEST_F(Data, ElementsOfAnArrayAreRecords) {
  const std::string text = "\n[ {\"a\": \"]}\\\"{\"} ,\n {\"b\": [{}, {\"c\": {}}]}\n]\n";
  EXPECT_THAT(records_of(write("a.json", text)), ElementsAre("element 1 (line 2): {\"a\": \"]}\\\"{\"}",
                                                             "element 2 (line 3): {\"b\": [{}, {\"c\": {}}]}"));
  EXPECT_THAT(records_of(write("a.json", "[]")), ElementsAre());
}

TEST_F(Data, ObjectsFollowOneAnotherWhateverTheEndingAndTheLines) {
  for (const char* name : {"a.json", "a.jsonl", "A.JSONL"}) {
    EXPECT_THAT(records_of(write(name, "{}\n{\n\"a\":\n[\n{\"b\": \"}\"},\n{}]}\n\n{} {}")),
                ElementsAre("line 1: {}", "line 2: {\n\"a\":\n[\n{\"b\": \"}\"},\n{}]}", "line 8: {}", "line 8: {}"));
    EXPECT_THAT(records_of(write(name, "\xef\xbb\xbf{\"a\":1}\r\n\xef\xbb\xbf{\"b\":2}")),
                ElementsAre("line 1: {\"a\":1}", "line 2: {\"b\":2}"));
    EXPECT_THAT(records_of(write(name, "[{}\n,{}]")), ElementsAre("element 1 (line 1): {}", "element 2 (line 2): {}"));
  }
}

// Whoever cuts a line short does not take the lines behind it along.
TEST_F(Data, ALineThatIsCutShortEndsAtItsEnd) {
  EXPECT_THAT(records_of(write("a.jsonl", "{\"a\": \"x\n{}\n")), ElementsAre("line 1: {\"a\": \"x", "line 2: {}"));
  EXPECT_THAT(records_of(write("a.jsonl", "{\"a\": {\"b\": 1\n{}\n")),
              ElementsAre("line 1: {\"a\": {\"b\": 1", "line 2: {}"));
  EXPECT_THAT(records_of(write("a.jsonl", "{\"a\": [1,\n{}]}\n")), ElementsAre("line 1: {\"a\": [1,\n{}]}"));
}

TEST_F(Data, TheSamplesMayBeTheListOfOneObject) {
  DataOptions o = options("a.json",
                          "{\"version\": 2, \"meta\": {\"list\": [{}]},\n \"data\": [{\"text\": \"a\"},\n"
                          " {\"text\": \"b\"}], \"empty\": []}\n");
  std::vector<std::string> notes;
  o.note = [&](const std::string& note) { notes.push_back(note); };
  EXPECT_THAT(all(o), ElementsAre("^|a>|", "^|b>|"));
  EXPECT_THAT(notes, ElementsAre(HasSubstr("a.json: the samples are the list 'data' of its one object; passed over: "
                                           "empty, meta, version")));
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_THAT(all(options("a.json", chat)), ElementsAre("<user\na>\n"));
  EXPECT_THAT(all(options("a.json", "{\"id\": [{}], \"text\": \"a\"}")), ElementsAre("^|a>|"));
  EXPECT_TRUE(refused("a.json", R"({"train": [{"text": "a"}], "test": [{"text": "b"}]})",
                      "found one object with several lists of objects: train, test"));
  EXPECT_TRUE(refused("a.json", R"({"data": [{"text": "a"}, 3]})", "a.json, element 2 of 'data' (line 1): found '3'"));
  EXPECT_TRUE(refused("a.json", R"({"data": [{"text": "a"}], "x"})", "expected JSON"));
  EXPECT_TRUE(refused("a.jsonl", R"({"data": [{"text": "a"}]})", "found the keys \"data\""));
}

TEST_F(Data, ATextFileIsOneDocumentUnlessItIsSplit) {
  const auto read = [&](const std::string& text, TextSplit split) {
    RecordOptions options;
    options.text_split = split;
    return records_of(write("a.txt", text), options);
  };
  const std::string text = "\xef\xbb\xbfone\r\n two\r\n \t\r\n\r\nthree\n\n";
  EXPECT_THAT(read(text, TextSplit::Document), ElementsAre("line 1: one\n two\n \t\n\nthree"));
  EXPECT_THAT(read(text, TextSplit::Paragraph), ElementsAre("line 1: one\n two", "line 5: three"));
  EXPECT_THAT(read(text, TextSplit::Line), ElementsAre("line 1: one", "line 2:  two", "line 5: three"));
  for (const TextSplit split : {TextSplit::Document, TextSplit::Paragraph, TextSplit::Line}) {
    EXPECT_THAT(read("one", split), ElementsAre("line 1: one"));
    EXPECT_THAT(read("one\r\n", split), ElementsAre("line 1: one"));
    EXPECT_THAT(read(" \n\n", split), ElementsAre());
  }
  EXPECT_EQ(text_split_from_name("line"), TextSplit::Line);
  EXPECT_TRUE(fails_with<UserError>([] { text_split_from_name("words"); }, "expected document, paragraph or line"));
}

TEST_F(Data, RecordsMayCrossTheReadersBuffer) {
  const std::string long_text(3 << 20, 'x');
  EXPECT_THAT(records_of(write("a.jsonl", "{}\n{\"" + long_text + "\"}\n{}\n")),
              ElementsAre("line 1: {}", "line 2: {\"" + long_text + "\"}", "line 3: {}"));
}

TEST_F(Data, BrokenFilesAreRefusedWithTheirPlace) {
  EXPECT_TRUE(refused("a.json", "[{\"text\": \"a\"}",
                      "a.json, line 1: found the end of the file after element 1, expected ',' or ']'"));
  EXPECT_TRUE(refused("a.json", "[{\"a\":\n1", "a.json, element 1 (line 1): the file ends inside it"));
  EXPECT_TRUE(refused("a.json", "[{\"a\": \"\\", "the file ends inside it"));
  EXPECT_TRUE(refused("a.json", "[{\"text\": \"a\"},\n]", "a.json, element 2 (line 2): found ']', expected an object"));
  EXPECT_TRUE(refused("a.json", "[3]", "a.json, element 1 (line 1): found '3', expected an object"));
  EXPECT_TRUE(refused("a.json", "[{\"text\": \"a\"}]\n{}", "line 2: found '{', expected nothing after the array"));
  EXPECT_TRUE(refused("a.json", "{\"text\": \"a\"},{}", "line 1: found ',', expected an object"));
  EXPECT_TRUE(refused("a.json", "[{\"a\"}]", "element 1 (line 1), column 5: expected JSON"));
  EXPECT_TRUE(refused("a.json", "[{\"text\":\"x\"},\n {\n\"a\"}]",
                      "a.json, element 2 (line 2), line 3, column 4: expected JSON"));
  EXPECT_TRUE(refused("a.jsonl", "{\"text\":\"x\"}\n{\"text\":\n", "a.jsonl, line 2: the file ends inside it"));
  EXPECT_TRUE(refused("a.jsonl", "{\"text\": \"\xff\"}", "expected JSON"));
  EXPECT_TRUE(refused("a.jsonl", "{\"text\": \"x\"}\n3\n", "a.jsonl, line 2: found '3', expected an object"));
  EXPECT_TRUE(refused("a.jsonl", "[]", "a.jsonl: found no sample"));
  EXPECT_TRUE(refused("a.jsonl", "{\"text\":" + std::string(100, '[') + std::string(100, ']') + "}",
                      "more than 64 levels of nesting"));
  EXPECT_TRUE(refused("a.json", "[{\"text\":" + std::string(100000, '['), "the file ends inside it"));
  EXPECT_TRUE(fails_with<UserError>([&] { RecordReader("missing.jsonl"); }, "missing.jsonl"));
}

TEST_F(Data, ARecordLongerThanTheLimitIsRefused) {
  for (const auto& [name, text] : {std::pair("a.jsonl", "{}\n{\"a\": 1}\n"), std::pair("a.json", "[{},\n{\"a\": 1}]"),
                                   std::pair("a.txt", "one\n234567")}) {
    RecordOptions options;
    options.max_record_bytes = 6;
    RecordReader reader(write(name, text), options);
    const auto read = [&] {
      for (Record record; reader.next(record);) continue;
    };
    EXPECT_TRUE(fails_with<UserError>(read, "line 2: found a sample of more than 6 bytes"));
  }
}

// ---- Shapes ---------------------------------------------------------------------------------------------------------

TEST_F(Data, ShapesAreFoundByLooking) {
  EXPECT_THAT(all(options("a.jsonl", R"({"instruction": "Add", "input": "1 2", "output": "3"})")),
              ElementsAre("<user\nAdd\n1 2>\n<assistant\n|3>|\n"));
  EXPECT_THAT(
      all(options("a.jsonl", R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})")),
      ElementsAre("<user\na>\n<assistant\n|b>|\n"));
  EXPECT_THAT(all(options("a.json", R"([{"messages": [{"role": "user", "content": "a"},
                                                      {"role": "assistant", "content": "b"}]}])")),
              ElementsAre("<user\na>\n<assistant\n|b>|\n"));
  EXPECT_THAT(all(options("a.jsonl", R"({"text": "ab"})")), ElementsAre("^|ab>|"));
  EXPECT_THAT(all(options("a.txt", "ab\ncd\n\nef\n")), ElementsAre("^|ab\ncd\n\nef>|"));
  EXPECT_THAT(all(options("a.jsonl", R"({"input_ids": [65, 66, 67], "labels": [65, -100, 67]})")),
              ElementsAre("AB|C|"));
  EXPECT_THAT(all(options("a.jsonl", R"({"input_ids": [65, 66]})")), ElementsAre("A|B|"));
}

TEST_F(Data, AlpacaKnowsSystemAndHistory) {
  EXPECT_THAT(all(options("a.json", R"([{"instruction": "q", "input": null, "output": "a", "system": "s",
                                         "history": [["q1", "a1"], ["q2", "a2"]]}])")),
              ElementsAre("<system\ns>\n<user\nq1>\n<assistant\n|a1>|\n<user\nq2>\n<assistant\n|a2>|\n"
                          "<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(all(options("a.jsonl", R"({"instruction": "", "input": "q", "output": ""})")),
              ElementsAre("<user\nq>\n<assistant\n|>|\n"));
}

TEST_F(Data, MessagesMayComeInParts) {
  EXPECT_THAT(all(options("a.json", R"([{"messages": [
      {"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c"}]}])")),
              ElementsAre("<system\ns>\n<user\nab>\n<assistant\n|c>|\n"));
}

TEST_F(Data, ShareGptMayNameASystemText) {
  EXPECT_THAT(all(options("a.json", R"([{"system": "s", "conversations": [
      {"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}, {"from": "human", "value": "c"}]}])")),
              ElementsAre("<system\ns>\n<user\na>\n<assistant\n|b>|\n<user\nc>\n"));
}

TEST_F(Data, TrainingOnAllCountsEveryTokenButTheFirst) {
  DataOptions o = options("a.jsonl", R"({"instruction": "q", "output": "a"})");
  o.train_on = TrainOn::All;
  EXPECT_THAT(all(o), ElementsAre("<|user\nq>\n<assistant\na>\n|"));
  o = options("a.jsonl", R"({"input_ids": [65, 66, 67], "labels": [-100, -100, 67]})");
  o.train_on = TrainOn::All;
  EXPECT_THAT(all(o), ElementsAre("AB|C|"));
}

TEST_F(Data, ColumnsRenameFields) {
  DataOptions o = options("a.jsonl", R"({"question": "q", "output": "never", "answer": "a"})");
  o.shape.columns = {{"instruction", "question"}, {"output", "answer"}};
  EXPECT_THAT(all(o), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  o = options("a.json", R"([{"chat": [{"who": "user", "said": "a"}]}])");
  o.shape.columns = {{"messages", "chat"}, {"role", "who"}, {"content", "said"}};
  EXPECT_THAT(all(o), ElementsAre("<user\na>\n"));
  o.shape.columns["mesages"] = "chat";
  EXPECT_TRUE(refused(o, "columns: found 'mesages: chat', expected one of instruction, input"));
}

TEST_F(Data, APromptPatternIsAllOfThePromptOrATemplatesTurn) {
  DataOptions o = options("a.jsonl", R"({"q": "why", "lang": "C", "output": "so", "input": null})");
  o.shape.prompt = "{{Q}} {q} in {lang}{input}? ";
  EXPECT_THAT(all(o), ElementsAre("<user\n{Q} why in C? >\n<assistant\n|so>|\n"));
  o.prompt_format.chat = ChatTemplate::choose("none", "", byte_encoder().special);
  EXPECT_THAT(all(o), ElementsAre("^{Q} why in C? |so>|"));
  for (const std::string bad : {"{q", "q}", "{", "}", "{a{b}}", "{q}}"}) {
    o.shape.prompt = bad;
    EXPECT_TRUE(refused(o, "prompt: found a lone")) << bad;
  }
}

TEST_F(Data, SamplesAreFoundAgainInTheirFiles) {
  const TextEncoder encoder = byte_encoder();
  const std::string text = "{\"text\": \"ab\"}\n\n{\"text\": \"cd\"}\n{\"text\": \"ef\"}\n";
  DataOptions two = options("a.jsonl", text);
  two.files.push_back(write("b.jsonl", "{\"text\": \"gh\"}\n"));
  const Dataset dataset = load_dataset(two, &encoder);
  const std::string a = two.files[0].string(), b = two.files[1].string();
  const std::vector<uint32_t> samples{0, 2, 3};
  EXPECT_THAT(places_of(dataset, two, samples), ElementsAre(a + ", line 1", a + ", line 4", b + ", line 1"));
  write("a.jsonl", text + text);
  EXPECT_THAT(places_of(dataset, two, samples), ElementsAre(a + ", sample 1", a + ", sample 3", b + ", line 1"));
  std::filesystem::remove(two.files[1]);
  two.max_samples = 3;
  EXPECT_THAT(places_of(dataset, two, samples), ElementsAre(a + ", line 1", a + ", line 4", b + ", sample 1"));
  two.files.pop_back();
  EXPECT_THAT(places_of(dataset, two, samples), ElementsAre("sample 1", "sample 3", "sample 4"));
}

TEST_F(Data, SamplesAreFoundAgainBehindRecordsThatWereLeftOut) {
  const TextEncoder encoder = byte_encoder();
  DataOptions o = options("a.csv", "text\n\"\"\nab\n\"\"\ncd\nef\n");
  o.empty_records = EmptyRecords::Skip;
  const Dataset dataset = load_dataset(o, &encoder);
  const std::string a = o.files[0].string();
  EXPECT_THAT(places_of(dataset, o, all_samples(3)), ElementsAre(a + ", line 3", a + ", line 5", a + ", line 6"));
  o.max_samples = 4;
  EXPECT_THAT(places_of(load_dataset(o, &encoder), o, all_samples(2)), ElementsAre(a + ", line 3", a + ", line 5"));
}

TEST_F(Data, TheFirstSamplesOfEachFileAreTaken) {
  DataOptions o = options("a.txt", "a\n\nb\n\nc");
  o.files.push_back(write("b.jsonl", "{\"text\": \"d\"}\n{\"text\": \"e\"}\nbroken"));
  o.max_samples = 2;
  o.text_split = TextSplit::Paragraph;
  EXPECT_THAT(all(o), ElementsAre("^|a>|", "^|b>|", "^|d>|", "^|e>|"));
}

TEST_F(Data, RecordsOfTheWrongShapeAreRefusedWithFileLineAndKey) {
  const std::string message = R"({"messages": [{"role": "user", "content": "a"}, )";
  EXPECT_TRUE(
      refused("a.jsonl", message + R"({"role": "tool", "content": "b"}]})",
              "a.jsonl, line 1: key 'role' of message 2: found 'tool', expected none: template chatml renders"));
  EXPECT_TRUE(refused("a.jsonl", message + R"({"role": "function_call", "content": "b"}]})",
                      "a.jsonl, line 1, key 'messages[1].role': found \"function_call\", expected 'tool_calls' of"));
  EXPECT_TRUE(refused("a.jsonl", message + R"({"role": "user", "content": null}]})", "key 'messages[1].content'"));
  EXPECT_TRUE(refused("a.jsonl", message + R"({"role": "user", "content": [{"type": "image"}]}]})",
                      "key 'messages[1]', key 'content[0].type': found \"image\", expected \"text\""));
  EXPECT_TRUE(refused("a.jsonl", message + "3]}", "key 'messages[1]': found 3, expected an object"));
  EXPECT_TRUE(refused("a.jsonl", R"({"messages": []})", "found [], expected at least one message"));
  EXPECT_TRUE(refused("a.jsonl", R"({"messages": "hi"})", "key 'messages': found \"hi\", expected a list"));
  EXPECT_TRUE(refused("a.jsonl", R"({"conversations": [{"from": "bing", "value": ""}]})",
                      "key 'conversations[0].from': found \"bing\", expected system, user or human, assistant or gpt"));
  EXPECT_TRUE(refused("a.jsonl", "{\"text\": \"x\"}\n\n{\"txt\": \"x\"}", "a.jsonl, line 3: key 'text' is missing"));
  EXPECT_TRUE(refused("a.jsonl", "{\"text\": 3}", "a.jsonl, line 1, key 'text': found 3, expected a string"));
  EXPECT_TRUE(refused("a.json", R"([{"instruction": "a"}])", "a.json, element 1 (line 1): key 'output' is missing"));
  EXPECT_TRUE(refused("a.jsonl", R"({"instruction": "a", "output": "b", "history": [["c"]]})", "a list of pairs"));
  EXPECT_TRUE(refused("a.jsonl", R"({"a": 1, "b": 2})", "line 1: found the keys \"a\", \"b\", expected one of"));
  EXPECT_TRUE(refused("a.jsonl", R"({"text": "a", "score": NaN})", "; NaN and Infinity are no JSON, which has null"));
  EXPECT_TRUE(refused("a.jsonl", R"({"conversations": [{"from": "human", "content": "a"}]})",
                      "key 'value' is missing, found the keys \"content\", \"from\"; --columns value=FIELD names it"));
  EXPECT_TRUE(refused(
      "a.jsonl", R"({"chosen": "a", "rejected": "b"})",
      "expected none with --objective sft or distill: dpo, orpo, simpo and reward learn from pairs of replies"));
}

TEST_F(Data, TokenIdsAreCheckedAgainstTheVocabulary) {
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [1, 259]})", "line 1: found token id 259, expected less than 259"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [1, 2], "labels": [1, 300]})", "found token id 300"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": []})", "expected at least one token id"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [1, -100]})", "key 'input_ids[1]': found -100, expected a token id"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [1.5]})", "found 1.5, expected a token id"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [4294967296]})", "found 4294967296"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [1], "labels": [18446744073709551516]})", "or -100"));
  EXPECT_TRUE(refused("a.jsonl", R"({"input_ids": [1, 2], "labels": [1]})", "expected 2 values, as 'input_ids' has"));
}

TEST_F(Data, WhatATemplateOrATokenizerRefusesIsSaidWithThePlace) {
  DataOptions o = options("a.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}");
  o.prompt_format.chat = ChatTemplate::choose("mistral", "", byte_encoder().special);
  EXPECT_TRUE(
      refused(o, "a.jsonl, line 1: template mistral, line 4: it refuses the conversation: Conversation roles must"));
  o.prompt_format = {.refusal = "template: there is none"};
  EXPECT_TRUE(refused(o, "template: there is none"));
  o = options("a.txt", "a\n\nb");
  o.text_split = TextSplit::Line;
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view text) -> std::vector<int32_t> {
    if (text == "b") throw UserError("byte 0 is no UTF-8");
    return {1};
  };
  const auto visit = [](const Sample&, const std::string&) {};
  EXPECT_TRUE(fails_with<UserError>([&] { for_each_sample(o, &encoder, visit); }, "a.txt, line 3: byte 0 is no UTF-8"));
  EXPECT_TRUE(fails_with<UserError>([&] { for_each_sample(o, nullptr, visit); }, "has no tokenizer.json"));
}

TEST_F(Data, FormatNamesAreThoseOfTheOption) {
  for (const char* format : {"alpaca", "sharegpt", "messages", "text", "tokens"}) {
    EXPECT_EQ(name(data_format_from_name(format)), format);
  }
  EXPECT_TRUE(fails_with<UserError>([] { data_format_from_name("csv"); }, "found 'csv', expected alpaca"));
  DataOptions o = options("a.txt", "a");
  o.format = DataFormat::Alpaca;
  EXPECT_TRUE(refused(o, "found a text file, data_format alpaca expects .json or .jsonl"));
}

TEST_F(Data, AnyCorruptionIsRefusedOrRead) {
  const std::string whole = R"([{"messages": [{"role": "user", "content": [{"type": "text", "text": "\u00e9\n"}]},)"
                            R"( {"role": "assistant", "content": "b"}]}, {"messages": []}])";
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<std::string> variants = {whole.substr(0, i), whole.substr(0, i) + whole.substr(i + 1)};
    for (const char c : {'"', '{', '\xc3'}) {
      variants.push_back(whole);
      variants.back()[i] = c;
    }
    for (const std::string& bytes : variants) {
      try {
        all(options("a.json", bytes));
      } catch (const UserError&) {
        continue;  // any other exception fails the test
      }
    }
  }
}

// ---- Tokens in memory -----------------------------------------------------------------------------------------------

TEST_F(Data, SamplesAreTheSameForAnyNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "{\"text\": \"" + std::string(static_cast<size_t>(i % 97), 'x') + "\"}\n";
  const DataOptions o = options("a.jsonl", text);
  const int before = threads();
  set_threads(1);
  const std::vector<std::string> one = all(o);
  set_threads(4);
  EXPECT_EQ(all(o), one);
  set_threads(before);
  ASSERT_EQ(one.size(), 5000u);
  EXPECT_EQ(one[3], "^|xxx>|");
}

TEST_F(Data, TheEarliestBadRecordIsNamed) {
  std::string text;
  for (int i = 1; i <= 3000; ++i) text += i == 700 || i == 701 || i == 2500 ? "{}\n" : "{\"text\": \"x\"}\n";
  EXPECT_TRUE(refused("a.jsonl", text, "a.jsonl, line 700: key 'text' is missing"));
}

TEST_F(Data, LabelsAreKeptAsTheyAre) {
  Dataset dataset;
  dataset.add({{1, 2, 3}, {1, 2, 3}});
  dataset.add({{4, 5, 6, 7}, {9, kNoLabel, 8, 7}});
  EXPECT_EQ(dataset.samples(), 2);
  EXPECT_EQ(dataset.tokens(), 7);
  EXPECT_EQ(dataset.length(1), 4);
  EXPECT_THAT(dataset.ids(1), ElementsAre(4, 5, 6, 7));
  std::vector<int32_t> labels(4);
  dataset.labels(1, 0, labels);
  EXPECT_THAT(labels, ElementsAre(kNoLabel, kNoLabel, 8, 7));  // nothing predicts a first token
  labels.resize(2);
  dataset.labels(1, 1, labels);
  EXPECT_THAT(labels, ElementsAre(kNoLabel, 8));
  dataset.labels(0, 1, labels);
  EXPECT_THAT(labels, ElementsAre(2, 3));
  EXPECT_EQ(dataset.loss_tokens(0, 0, 3), 2);
  EXPECT_EQ(dataset.loss_tokens(1, 0, 4), 2);
  EXPECT_EQ(dataset.loss_tokens(1, 3, 4), 1);
  EXPECT_EQ(dataset.loss_tokens(1, 2, 2), 0);
}

TEST_F(Data, LossTokensAreCountedAcrossWords) {
  Dataset dataset;
  Sample sample;
  for (int i = 0; i < 300; ++i) {
    sample.ids.push_back(i);
    sample.labels.push_back(i % 3 == 0 ? kNoLabel : i);
  }
  dataset.add({{1}, {1}});
  dataset.add(sample);
  for (int64_t begin = 0; begin < 300; begin += 7) {
    for (int64_t end = begin; end <= 300; end += 11) {
      int64_t expected = 0;
      for (int64_t i = begin; i < end; ++i) expected += i % 3 != 0;
      EXPECT_EQ(dataset.loss_tokens(1, begin, end), expected);
    }
  }
}

TEST_F(Data, TokenFilesOfTheReferenceAreReadWhole) {
  DataOptions o;
  o.files = {SNUG_FIXTURES "/models/data.jsonl"};
  o.vocabulary = 997;
  const Dataset dataset = load_dataset(o, nullptr);
  int64_t loss_tokens = 0;
  for (int64_t s = 0; s < dataset.samples(); ++s) loss_tokens += dataset.loss_tokens(s, 0, dataset.length(s));
  EXPECT_EQ(dataset.samples(), 12);
  EXPECT_EQ(loss_tokens, 131);
  std::vector<int32_t> labels(2);
  dataset.labels(8, 1, labels);
  EXPECT_EQ(labels[0], (dataset.ids(8)[1] + 5) % 997);
}

TEST_F(Data, AnEmptyFileIsNoDataSet) {
  const TextEncoder encoder = byte_encoder();
  EXPECT_TRUE(
      fails_with<UserError>([&] { load_dataset(options("a.json", "[]"), &encoder); }, "a.json: found no sample"));
}

TEST_F(Data, HoldingOutIsDrawnFromTheSeed) {
  const HoldOut a = hold_out(100, 0.05, 42), b = hold_out(100, 0.05, 42), c = hold_out(100, 0.05, 43);
  EXPECT_EQ(a.validation.size(), 5u);
  EXPECT_EQ(a.validation, b.validation);
  EXPECT_NE(a.validation, c.validation);
  EXPECT_TRUE(std::is_sorted(a.training.begin(), a.training.end()));
  std::vector<uint32_t> both = a.training;
  both.insert(both.end(), a.validation.begin(), a.validation.end());
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, all_samples(100));
  EXPECT_EQ(hold_out(10, 0.001, 1).validation.size(), 1u);
  EXPECT_EQ(hold_out(10, 0.999, 1).validation.size(), 9u);
  EXPECT_TRUE(fails_with<UserError>([] { hold_out(10, 1.0, 1); }, "a fraction between 0 and 1"));
  EXPECT_TRUE(fails_with<UserError>([] { hold_out(1, 0.5, 1); }, "two or more"));
}

}  // namespace
}  // namespace snug
