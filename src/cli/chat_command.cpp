// Implements snug chat: a conversation over standard input and output.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "api/launch.h"
#include "api/learning.h"
#include "api/no_effect.h"
#include "api/text.h"
#include "api/use.h"
#include "base/say.h"
#include "cli/commands.h"
#include "cli/prompt_images.h"
#include "cli/reply_text.h"

namespace snug {
namespace {

constexpr size_t kMostTyped = 1 << 20;  // of a line, in bytes

constexpr int kTypingMilliseconds = 500;  // between two signs of life

// Returns text with U+FFFD for whatever is no character, as in JSON: replies may end within a character.
std::string whole_characters(const std::string& text) {
  return nlohmann::json::parse(to_line(text)).get<std::string>();
}

// Reads standard input by lines.
class Lines {
 public:
  // Returns the next line without its end (LF or CR LF), the first without a byte order mark; nothing if there is no
  // more. `heartbeat` is called again and again until a line is there.
  std::optional<std::string> next(const Heartbeat& heartbeat) {
    size_t end = 0;
    while ((end = read_.find('\n')) == read_.npos && !ended_) read_more(heartbeat);
    if (end == read_.npos && read_.empty()) return std::nullopt;
    std::string line = read_.substr(0, end);
    read_.erase(0, end == read_.npos ? end : end + 1);
    if (line.ends_with('\r')) line.pop_back();
    if (number_++ == 0 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    return line;
  }
  std::string place() const { return fmt::format("standard input, line {}", number_); }

 private:
  void read_more(const Heartbeat& heartbeat) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (poll(&input, 1, kTypingMilliseconds) == 0) call(heartbeat);
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) return;
    if (count < 0) device_error("standard input: cannot be read: {}", std::strerror(errno));
    ended_ = count == 0;
    read_.append(bytes.data(), static_cast<size_t>(count));
    if (read_.size() > kMostTyped && read_.find('\n') == read_.npos)
      user_error("standard input, line {}: found more than {} bytes, expected less in a line", number_ + 1, kMostTyped);
  }

  std::string read_;
  bool ended_ = false;
  int64_t number_ = 0;
};

// Holds what only rank 0 has: the terminal, and what has been said.
class Dialogue {
 public:
  // The first text that is typed comes with the images.
  Dialogue(const PromptEncoder& encoder, const PromptImages& images, int64_t most_tokens, bool json)
      : encoder_(encoder), images_(images), most_tokens_(static_cast<size_t>(most_tokens)), json_(json) {}

  // Returns the conversation up to the next text that is typed, as tokens; none if the input ends.
  std::vector<int32_t> listen(const Heartbeat& heartbeat) {
    while (true) {
      if (terminal_) fmt::print("> "), std::fflush(stdout);
      const std::optional<std::string> line = lines_.next(heartbeat);
      if (!line && terminal_) fmt::print("\n");
      if (!line) return {};
      if (line->find_first_not_of(" \t\r") == line->npos) continue;
      typed_ = *line;
      turns_.push_back({ChatRole::User, *line});
      std::vector<int32_t> tokens;
      try {
        tokens = encode();
      } catch (const UserError& error) {  // a person types another line; a program may not miss the reply to one
        if (!terminal_) throw;
        snug::say(fmt::format("snug: {}\n", error.what()));
        turns_.pop_back();
        continue;
      }
      if (tokens.size() > most_tokens_ && turns_.size() > 1) {
        say("the conversation has become too long, and begins anew");
        turns_.erase(turns_.begin(), turns_.end() - 1);
        tokens = encode();
      }
      if (tokens.size() <= most_tokens_) return tokens;
      const std::string refusal =
          fmt::format("found {} tokens, expected at most {} before a reply", tokens.size(), most_tokens_);
      say(refusal);
      if (json_) fmt::print("{}\n", to_line({{"prompt", typed_}, {"text", nullptr}, {"error", refusal}}));
      std::fflush(stdout);
      turns_.clear();
    }
  }

  void show(std::string_view text) {
    if (json_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  void end_reply(const std::string& text, const std::vector<int32_t>& reply) {
    if (json_)
      fmt::print("{}\n", to_line({{"prompt", typed_}, {"text", text}, {"ids", reply}}));
    else
      fmt::print("\n");
    std::fflush(stdout);
    turns_.push_back({ChatRole::Assistant, whole_characters(text)});
  }

 private:
  std::vector<int32_t> encode() const {
    std::vector<Message> turns = turns_;
    turns[0].content = images_.write(turns[0].content, lines_.place());
    for (size_t i = 1; i < turns.size(); i++)
      if (turns[i].role == ChatRole::User) images_.refuse_in(turns[i].content, lines_.place());
    return images_.expand(encoder_.encode(turns, lines_.place()), lines_.place());
  }

  static void say(const std::string& what) {
    snug::say(fmt::format("{}; --sequence-length gives more room, --max-new-tokens leaves less for replies\n", what));
  }

  const PromptEncoder& encoder_;
  const PromptImages& images_;
  size_t most_tokens_;
  bool json_, terminal_ = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  Lines lines_;
  std::string typed_;
  std::vector<Message> turns_;
};

// Returns on all ranks what rank 0 heard.
std::vector<int32_t> listen(Comm* comm, Dialogue& dialogue) {
  const std::vector<uint64_t> words = from_rank_0(comm, [&](const Heartbeat& heartbeat) {
    const std::vector<int32_t> tokens = dialogue.listen(heartbeat);
    return std::vector<uint64_t>(tokens.begin(), tokens.end());
  });
  return {words.begin(), words.end()};
}

}  // namespace

int chat_command(JobConfig options, const CommandFlags& flags) {
  std::unique_ptr<Comm> comm = launched("chat");
  if (flags.max_new_tokens >= options.sequence_length)
    user_error("max_new_tokens: found {}, expected less than --sequence-length, {}: the tokens of a conversation",
               flags.max_new_tokens, options.sequence_length);
  require_logits(options);
  const PromptEncoder encoder(options, flags.system);
  const PromptImages images(options, flags.images, encoder.tokenizer());
  images.refuse_in(flags.system, "--system");
  options.found.block_patches = images.patches();
  JobSpec spec = make_job(options, Purpose::Generate);
  if (!comm || comm->topology().rank == 0) say_lines(encoder.format().notes);
  spec.cache_positions = options.sequence_length;
  spec.cut.sequence_length = 1;
  const Planned planned = plan_use(std::move(spec), options, comm.get());
  if (!comm || comm->topology().rank == 0) {
    say_lines(position_notes(options.sequence_length, "--sequence-length", planned.spec.model));
    say_lines(options_without_effect(
        options, {.draws_nothing = flags.sampling.temperature == 0, .shows_no_image = images.empty()}));
  }
  use_model(planned, options, std::move(comm), [&](Session& session) {
    Dialogue dialogue(encoder, images, options.sequence_length - flags.max_new_tokens, flags.json);
    Generator generator(session, generate_options(options, flags, encoder));
    std::vector<uint32_t> shown;
    while (true) {
      const std::vector<int32_t> prompt = listen(session.comm(), dialogue);
      if (prompt.empty()) break;
      const bool speaks = session.rank() == 0;
      ReplyText text(encoder.stream(), flags.stop);
      images.show(prompt, generator, options, shown);
      const std::vector<int32_t> reply = generator.reply(prompt, [&](int32_t token) {
        const bool goes_on = text.add(token);
        if (speaks) dialogue.show(text.next(!goes_on));
        return goes_on;
      });
      if (!speaks) continue;
      dialogue.show(text.next(true));
      dialogue.end_reply(text.text(), reply);
    }
  });
  return 0;
}

}  // namespace snug
