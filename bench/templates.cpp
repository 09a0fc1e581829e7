// How fast conversations are rendered by a chat template, with the stretches that carry loss, on one thread.
//
//   templates FILE... [--messages 8] [--bytes 500] [--seconds 1]
//
// Prints for each template the bytes of text per second of the fastest pass, over conversations of questions and
// replies of so many bytes, and for half as many messages with a call and its result in the place of every other reply,
// where it renders these.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "format/chat_template.h"
#include "format/jinja_json.h"

namespace {

std::string text_of(size_t bytes) {
  constexpr std::string_view kWords = "High water in Bergen is at two, and\nthe ferry \"Ä\" leaves before it. ";
  std::string text;
  while (text.size() < bytes) text += kWords;
  text.resize(text.find(' ', bytes - kWords.size()));
  return text;
}

std::vector<snug::Message> conversation(size_t count, size_t bytes, bool calls) {
  using snug::ChatRole;
  std::vector<snug::Message> out;
  while (out.size() < count) {
    out.push_back({ChatRole::User, text_of(bytes)});
    if (calls) {
      out.push_back({ChatRole::Assistant, ""});
      out.back().calls = {snug::jinja::value_of_json(
          R"({"id": "call00001", "type": "function", "function": {"name": "tide", "arguments": {"port": "Bergen"}}})")};
      out.push_back({ChatRole::Tool, text_of(bytes)});
      out.back().others = {{"tool_call_id", snug::jinja::value_of_json("\"call00001\"")}};
    }
    out.push_back({ChatRole::Assistant, text_of(bytes)});
  }
  return out;
}

// Bytes of text per second.
double rate_of(const snug::ChatTemplate& chat, const std::vector<snug::Message>& messages, double seconds) {
  using clock = std::chrono::steady_clock;
  double best = 1e9;
  size_t bytes = 0;
  const auto end = clock::now() + std::chrono::duration<double>(seconds);
  while (clock::now() < end) {
    constexpr int kAtOnce = 20;
    const auto begin = clock::now();
    for (int i = 0; i < kAtOnce; ++i) {
      bytes = 0;
      for (const snug::Piece& piece : chat.render(messages, false)) bytes += piece.text.size();
    }
    best = std::min(best, std::chrono::duration<double>(clock::now() - begin).count() / kAtOnce);
  }
  return static_cast<double>(bytes) / best;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Conversations to text");
  std::vector<std::string> files;
  size_t messages = 8, bytes = 500;
  double seconds = 1;
  app.add_option("files", files, "chat templates")->required();
  app.add_option("--messages", messages);
  app.add_option("--bytes", bytes)->check(CLI::Range(100, 1 << 20));
  app.add_option("--seconds", seconds);
  CLI11_PARSE(app, argc, argv);
  for (const std::string& file : files) {
    for (const bool calls : {false, true}) {
      const auto turns = conversation(messages, bytes, calls);
      try {
        const auto chat = snug::ChatTemplate::choose("auto", snug::read_text(file, 1 << 20), {"<s>", "</s>"});
        fmt::print("{:8.1f} MB/s  {}{}\n", rate_of(chat, turns, seconds) / 1e6, file, calls ? ", with calls" : "");
      } catch (const snug::UserError& error) {
        fmt::print("       -       {}: {}\n", file, error.what());
      }
    }
  }
}
