// Fields by the names that options give them, and what shape a record has.
#include "shapes_fixture.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Shapes, AFieldThatOptionsNameIsInSomeRecord) {
  options_.shape.columns = {{"instruction", "q"}, {"input", "pasage"}, {"output", "a"}};
  EXPECT_TRUE(refused(
      R"({"q": "x", "context": "y", "a": "z"})",
      "a.jsonl: found no field 'pasage' in any record (1 read), expected it as --columns names it; the first has "
      "the keys \"a\", \"context\", \"q\""));
  EXPECT_THAT(read(std::vector<std::string>{R"({"q": "x", "a": "z"})", R"({"q": "x", "pasage": null, "a": "z"})"}),
              ElementsAre("<user\nx>\n<assistant\n|z>|\n", "<user\nx>\n<assistant\n|z>|\n"));
  options_.shape.columns = {{"Q", "q"}};
  options_.shape.prompt = "{Q} {lang}";
  EXPECT_TRUE(
      refused(R"({"q": "x", "output": "z"})", "found no field 'lang' in any record (1 read), expected it as --prompt"));
  EXPECT_TRUE(refused(R"({"lang": "x", "output": "z"})",
                      "found no field 'q' in any record (1 read), expected it as --columns"));
  EXPECT_THAT(read(R"({"q": "x", "lang": "C", "output": "z"})"), ElementsAre("<user\nx C>\n<assistant\n|z>|\n"));
  EXPECT_TRUE(refused(R"({"text": "x"})", "found a record of the shape text, expected alpaca: --prompt is for"));
  options_.shape.prompt.reset();
  options_.shape.columns = {{"content", "body"}};
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "body": "x"}]})"), ElementsAre("<user\nx>\n"));
  EXPECT_TRUE(refused(R"({"messages": [{"from": "user", "value": "x"}]})", "found no field 'body'"));
}

TEST_F(Shapes, AFileWithoutAFieldThatOptionsNameIsSaid) {
  options_.shape.columns = {{"instruction", "q"}, {"input", "passage"}, {"output", "a"}};
  const std::string with = R"({"q": "x", "passage": "y", "a": "z"})", without = R"({"q": "x", "a": "z"})";
  EXPECT_THAT(read_files({{"a.jsonl", without}, {"b.jsonl", with}}),
              ElementsAre("<user\nx>\n<assistant\n|z>|\n", "<user\nx\ny>\n<assistant\n|z>|\n"));
  EXPECT_THAT(notes_,
              ElementsAre(options_.files[0].string() + ": no record has the field 'passage', which --columns names"));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        read_files({{"a.jsonl", without}, {"b.jsonl", without + "\n" + without}});
      },
      "a.jsonl and 1 more: found no field 'passage' in any record (3 read), expected it as --columns names it; the "
      "first has the keys \"a\", \"q\""));
  // What its shape needs is missing like any other field.
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        read_files({{"a.jsonl", with}, {"b.jsonl", R"({"q": "x", "b": "z"})"}});
      },
      "b.jsonl, line 1: key 'a' is missing, found the keys \"b\", \"q\""));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        read_files({{"a.txt", "x"}});
      },
      "a.txt: found no field 'passage' in any record (1 read), expected it as --columns"));
}

TEST_F(Shapes, MessagesThatATableHasAsTextAreReadOrRefusedAndNeverLearntAsText) {
  const auto cell = [](std::string text) {
    for (size_t i = 0; (i = text.find('"', i)) != std::string::npos; i += 2) text.insert(i, 1, '"');
    return '"' + text + '"';
  };
  const std::string question = R"([{"role": "user", "content": "q"}])", reply = R"( [{"from": "gpt", "value": "a"}]
)",
                    python = "[{'role': 'user', 'content': 'q'}]", cut = R"([{"role": "user", "content": "q)";
  const auto csv = [&](const std::string& header, const std::string& a, const std::string& b) {
    return std::vector<std::pair<std::string, std::string>>{{"a.csv", header + "\n" + cell(a) + "," + cell(b) + "\n"}};
  };
  const auto refused_csv = [&](const std::string& header, const std::string& a, const std::string& b,
                               const std::string& part) {
    return fails_with<UserError>([&] { read_files(csv(header, a, b)); }, part);
  };
  EXPECT_THAT(read_files(csv("prompt,completion", question, reply)), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_THAT(read(Json{{"prompt", question}, {"completion", reply}}), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  for (const char* list : {"messages", "conversations"}) {
    EXPECT_THAT(read_files(csv("id," + std::string(list), "7", question)), ElementsAre("<user\nq>\n"));
    for (const std::string& other : {python, cut, std::string("q")})
      EXPECT_TRUE(refused_csv("id," + std::string(list), "7", other,
                              "a.csv, line 2, key '" + std::string(list) + "': found \""));
  }
  EXPECT_TRUE(refused_csv("prompt,chosen", "q", question, "a.csv, line 2, key 'chosen': found "));
  // Named as texts they are none.
  options_.shape.columns = {{"instruction", "prompt"}, {"output", "completion"}};
  EXPECT_THAT(read_files(csv("prompt,completion", question, reply)), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_TRUE(refused_csv("prompt,completion", question, "a", "a.csv, line 2, key 'prompt': found [{"));
  EXPECT_TRUE(refused_csv("prompt,completion", "q", reply, "a.csv, line 2, key 'completion': found [{"));
  for (const std::string& other : {python, cut}) {
    EXPECT_TRUE(refused_csv("prompt,completion", other, "a", "a.csv, line 2, key 'prompt': found \"[{"));
    EXPECT_TRUE(refused_csv("prompt,completion", "q", other,
                            "expected a text, or a list of messages written as JSON, which what Python prints is not"));
  }
  for (const char* text : {"[1, 2]", "[{\"a\": 1}]", "[x] done", "{\"role\": \"user\"}"})
    EXPECT_THAT(read_files(csv("prompt,completion", text, "a")),
                ElementsAre("<user\n" + std::string(text) + ">\n<assistant\n|a>|\n"));
  options_.shape.columns = {{"text", "prompt"}};
  EXPECT_TRUE(refused_csv("id,prompt", "7", question, "a.csv, line 2, key 'prompt': found "));
  EXPECT_TRUE(refused_csv("id,prompt", "7", python, "a.csv, line 2, key 'prompt': found "));
}

// Followed by half, an advice would teach the records without their input.
TEST_F(Shapes, AFieldInOtherLettersIsNamed) {
  options_.shape.columns = {{"instruction", "Instruction"}, {"output", "Output"}};
  EXPECT_TRUE(refused(R"({"Instruction": "a", "Input": "b", "Output": "c"})", "--columns input=Input names it"));
}

TEST_F(Shapes, WhatAKeyLinksOrNamesIsContentWhereItIsNoText) {
  EXPECT_TRUE(refused(R"({"messages": [{"role": "user", "content": "a", "video_url": "v.mp4"}]})", "video_url"));
  EXPECT_TRUE(
      refused(R"({"messages": [{"role": "assistant", "content": "", "function_name": "f"}]})", "function_name"));
}

TEST_F(Shapes, ARecordOfNoShapeIsToldWhichColumnsHelp) {
  EXPECT_TRUE(
      refused(R"({"prompt": "a", "completion": "b"})", "--columns instruction=prompt,output=completion names them"));
  EXPECT_TRUE(refused(R"({"dialogue": [{"role": "user", "content": "a"}]})", "--columns messages=dialogue names it"));
  EXPECT_TRUE(refused(R"({"document": "a", "id": 3})", "--columns text=document names it"));
  EXPECT_TRUE(refused(R"({"Instruction": "a", "Output": "b"})", "--columns instruction=Instruction,output=Output"));
  EXPECT_TRUE(
      refused(R"({"foo": "a"})", "name the fields with --columns, such as --columns instruction=KEY,output=KEY"));
  EXPECT_TRUE(refused(R"({"ticket": "a", "answer": "b"})", "such as --columns instruction=KEY,output=answer"));
  EXPECT_TRUE(refused(R"({"instruction": "a", "response": "b"})",
                      "key 'output' is missing, found the keys \"instruction\", \"response\"; --columns "
                      "output=response names it"));
  EXPECT_TRUE(refused(R"({"messages": [{"speaker": "user", "text": "a"}]})",
                      "key 'messages[0]': key 'role' is missing, found the keys \"speaker\", \"text\"; --columns "
                      "role=FIELD names it"));
  EXPECT_TRUE(refused(R"({"prompt": "a", "chosen": "b", "rejected": "c"})",
                      "key 'chosen': found \"b\", expected none with --objective sft or distill: dpo, orpo, simpo and "
                      "reward learn from "
                      "pairs"));
  EXPECT_TRUE(refused(
      R"({"prompt": "a", "completion": "b", "label": true})",
      "key 'label': found true, expected none with --objective sft or distill: kto learns from replies with a label"));
}

TEST_F(Shapes, ColumnsThatAreTheWrongWayRoundAreTurned) {
  options_.shape.columns = {{"ticket", "instruction"}};
  EXPECT_TRUE(refused(R"({"ticket": "a", "answer": "b"})",
                      "; --columns instruction=ticket takes the data's 'ticket' for instruction"));
}

TEST_F(Shapes, AFieldThatIsNullIsSaidToBeNull) {
  EXPECT_TRUE(refused(R"({"instruction": "a", "output": null})",
                      "a.jsonl, line 1, key 'output': found null, expected a value: what is null, as an empty cell"));
  EXPECT_TRUE(refused(R"({"instruction": null, "output": "b"})", "key 'instruction': found null"));
  for (const std::string key : {"text", "messages", "conversations", "input_ids"})
    EXPECT_TRUE(
        refused(std::vector{"{\"" + key + "\": null}"}, "line 1, key '" + key + "': found null, expected a value"));
  EXPECT_TRUE(
      refused(std::vector<std::string>{R"({"text": "a"})", R"({"text": null})"}, "line 2, key 'text': found null"));
}

// Not one a run: all of a file are counted, and the first ones named.
TEST_F(Shapes, RecordsThatAreNullAreSaidAtOnce) {
  const auto refused_csv = [&](const std::string& rows, const std::string& part) {
    return fails_with<UserError>([&] { read_files({{"a.csv", "instruction,output\n" + rows}}); }, part);
  };
  EXPECT_TRUE(refused_csv("q,a\n,\nr,b\n\"\",\n",
                          "says nothing; --empty-records skip leaves such records out; 2 records of the file have such "
                          "fields: line 3, line 5; none of these has any value"));
  EXPECT_TRUE(refused_csv(",\nq,a\n,\n", "line 2, key 'instruction': found null"));
  EXPECT_TRUE(refused_csv(",\nq,a\n,\n", "; 2 records of the file have such fields: line 2, line 4; ")) << "the first";
  EXPECT_TRUE(refused_csv("q,a\n,\n", " leaves such records out; it has no value at all"));
  EXPECT_TRUE(refused_csv("q,a\n,\n,b\n", "records of the file have such fields: line 3, line 4"));
  EXPECT_FALSE(refused_csv("q,a\n,\n,b\n", "any value")) << "line 4 has one";
  std::string many = "q,a\n";
  for (int i = 0; i < 3000; i++) many += i % 1000 < 2 ? ",\n" : "q,a\n";
  EXPECT_TRUE(refused_csv(many,
                          "; 6 records of the file have such fields: line 3, line 4, line 1003, line 1004, line "
                          "2003 and 1 more; "))
      << "also in lots to come";
  options_.max_samples = 1500;
  EXPECT_TRUE(refused_csv(many, "; 4 records of the file have such fields: ")) << "of those that are read";
}

class EmptyRecordsAreLeftOut : public Shapes {
 protected:
  EmptyRecordsAreLeftOut() { options_.empty_records = EmptyRecords::Skip; }
  // What is said of the file alone, without its folder.
  std::vector<std::string> said() const {
    std::vector<std::string> lines = notes_;
    for (std::string& line : lines) line.erase(0, directory_.path().string().size() + 1);
    return lines;
  }
};

TEST_F(EmptyRecordsAreLeftOut, InAnyPlaceOfATableAndCounted) {
  const auto taken = ElementsAre("<user\nq>\n<assistant\n|a>|\n", "<user\nr>\n<assistant\n|b>|\n");
  EXPECT_THAT(read_files({{"a.csv", "instruction,output\n,\nq,a\n,\nr,b\ns,\n"}}), taken);
  EXPECT_THAT(said(), ElementsAre("a.csv: 3 of 5 records are left out, as a field that they need is null or an empty "
                                  "cell: line 2, line 4, line 6"));
  EXPECT_THAT(
      read(std::vector<std::string>{R"({"instruction": "q", "output": "a"})", R"({"instruction": "x", "output": null})",
                                    R"({"instruction": "r", "input": null, "output": "b"})"}),
      taken);
  EXPECT_THAT(said(), ElementsAre("a.jsonl: 1 of 3 records is left out, as a field that it needs is null or an empty "
                                  "cell: line 2"));
  read(R"({"instruction": "q", "output": ""})");
  EXPECT_THAT(said(), ElementsAre(HasSubstr("1 reply is empty"))) << "which is a text";
}

TEST_F(EmptyRecordsAreLeftOut, AlsoWholeLotsBeforeTheFirstThatSaysItsShape) {
  std::string rows = "instruction,output\n";
  for (int i = 0; i < 3000; i++) rows += ",\n";
  EXPECT_THAT(read_files({{"a.csv", rows + "q,a\n"}}), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(said(), ElementsAre(HasSubstr("a.csv: 3000 of 3001 records are left out")));
  EXPECT_THAT(said(), ElementsAre(testing::EndsWith(": line 2, line 3, line 4, line 5, line 6 and 2995 more")));
  options_.max_samples = 10;
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        read_files({{"a.csv", rows + "q,a\n"}});
      },
      "a.csv: 10 of 10 records are left out, as a field that they need is null or an "
      "empty cell: line 2, line 3, line 4, line 5, line 6 and 5 more; expected one that "
      "has what it needs"));
}

TEST_F(EmptyRecordsAreLeftOut, OfPreferencesToo) {
  options_.shape.samples = Samples::Pairs;
  EXPECT_THAT(read(std::vector<std::string>{R"({"prompt": "q", "chosen": null, "rejected": "b"})",
                                            R"({"prompt": "q", "chosen": "ac", "rejected": "ab"})",
                                            R"({"prompt": "q", "chosen": "a", "rejected": null})"})
                  .size(),
              1u);
  EXPECT_THAT(said().front(), HasSubstr("a.jsonl: 2 of 3 records are left out"));
}

// What is wrong in another way stops a run as ever.
TEST_F(EmptyRecordsAreLeftOut, AndNoOthers) {
  EXPECT_TRUE(refused(std::vector<std::string>{R"({"text": null})", R"({"text": 3})"}, "line 2, key 'text': found 3"));
  EXPECT_TRUE(refused(std::vector<std::string>{R"({"text": null})", R"({"words": "a"})"}, "line 2: found the keys"));
  EXPECT_TRUE(refused(std::vector<std::string>{R"({"text": "a"})", R"({"words": "a"})"}, "key 'text' is missing"));
}

TEST_F(Shapes, APatternIsAllOfAPromptUnlessItNamesMore) {
  options_.prompt_format.chat = ChatTemplate::choose("none", "", byte_encoder().special);
  options_.shape.prompt = "Q {instruction} A ";
  const char *system = R"({"instruction": "q", "system": "s", "output": "a"})",
             *history = R"({"instruction": "q", "history": [["x", "y"]], "output": "a"})";
  EXPECT_TRUE(refused(system, "a.jsonl, line 1, key 'system': found \"s\", expected none, or its name in --prompt"));
  EXPECT_TRUE(refused(history,
                      "a.jsonl, line 1, key 'history': found [[\"x\",\"y\"]], expected none, or its name in --prompt"));
  EXPECT_THAT(read(R"({"instruction": "q", "system": "", "history": [], "output": "a"})"), ElementsAre("^Q q A |a>|"));
  options_.prompt_format.chat = ChatTemplate::choose("chatml", "", byte_encoder().special);
  EXPECT_THAT(read(system), ElementsAre("<system\ns>\n<user\nQ q A >\n<assistant\n|a>|\n")) << "it has its place there";
  EXPECT_TRUE(refused(history, "key 'history'"));
  options_.shape.prompt = "{system} {instruction}";
  EXPECT_THAT(read(system), ElementsAre("<user\ns q>\n<assistant\n|a>|\n")) << "once";
}

TEST_F(Shapes, AFieldOfAPatternThatIsNullTeachesNothing) {
  options_.shape.prompt = "{question}{input}";
  EXPECT_TRUE(refused(R"({"question": null, "input": "i", "output": "a"})",
                      "a.jsonl, line 1, key 'question': found null, expected a value"));
  EXPECT_THAT(read(R"({"question": "q", "input": null, "output": "a"})"), ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
}

TEST_F(Shapes, ARecordOfAnotherShapeThanTheFirstIsRefusedByItsLine) {
  EXPECT_TRUE(
      refused(std::vector<std::string>{R"({"text": "a"})", R"({"messages": [{"role": "user", "content": "a"}]})"},
              "a.jsonl, line 2: key 'text' is missing, which the file's first record has or --data-format asks "
              "for; found the keys of 'messages': expected one shape a file"));
  EXPECT_TRUE(refused(std::vector<std::string>{R"({"instruction": "a", "output": "b"})", R"({"text": "a"})"},
                      "a.jsonl, line 2: key 'instruction' is missing, which the file's first"));
}

}  // namespace
}  // namespace snug
