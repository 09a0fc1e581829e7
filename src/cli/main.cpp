// Implements the command line: options into structs, errors into exit codes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "api/failure.h"
#include "api/job_file.h"
#include "api/launch.h"
#include "api/run.h"
#include "api/target.h"
#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/option_pages.h"

namespace {

using namespace snug;

// Holds what one subcommand's flags were given on the command line, before they are applied over the job file.
struct Given {
  std::string job_file;
  std::map<std::string, std::vector<std::string>> values;  // by key
  CommandFlags flags;
};

// Writes an option's value once: that a flag may be repeated is no part of its value.
class OnceFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

void add_option(CLI::App& app, const OptionSpec& spec, Given& given) {
  std::vector<std::string>& values = given.values[spec.key];
  CLI::Option* option = app.add_option(flag_of(spec), values, help_line(spec))
                            ->type_name(value_name(spec.type))
                            ->group(spec.group)
                            ->allow_extra_args(false);
  if (spec.is_bool()) option->expected(0, 1);
  if (!spec.is_list()) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_command_flags(CLI::App& app, const std::string& command, Given& given) {
  app.add_flag("--json", given.flags.json, "JSON on standard output and nothing else there");
  if (command == "plan")
    app.add_flag("--verbose", given.flags.verbose, "every kind of op with its kernel, rate and seconds of a step");
  if (command == "import") {
    app.add_option("file", given.flags.file, "the GGUF file, or the directory or id of the model")->required();
  } else if (command == "schema") {
    app.add_option(
           "--as", given.flags.format,
           "json: a schema of job files, for editors; markdown: a page; man: snug(1); bash: what completes command "
           "lines")
        ->type_name("WORD")
        ->check(CLI::IsMember({"json", "markdown", "man", "bash"}))
        ->allow_extra_args(false);
  } else if (command == "doctor") {
    app.add_option("--disk-dir", given.flags.disk_directory, "directory whose disk is measured (.)");
  } else if (command == "report") {
    app.add_option("run", given.flags.runs, "directories of runs, several to compare them")->required();
    CLI::Option* serve = app.add_flag("--serve", given.flags.serve,
                                      "serve the page to browsers of this machine until Ctrl-C, read anew for each "
                                      "look, instead of writing a file");
    app.add_option("--port", given.flags.port, "of 127.0.0.1 to serve at; 0 = one that is free (0)")
        ->check(CLI::Range(0, 65535))
        ->needs(serve);
  } else if (command == "explain") {
    app.add_option("run", given.flags.runs, "directories of runs")->required();
  } else if (command == "translate") {
    app.add_option("words", given.flags.words,
                   "a YAML or JSON file with key=value behind it, a shell script, or behind '--' a command")
        ->required();
    app.add_option(
           "--from", given.flags.from,
           "whose options they are, where nothing says it: llamafactory, llama-recipes, openrlhf, minicpm, axolotl, "
           "trl, trainer (transformers'), deepspeed or accelerate")
        ->allow_extra_args(false);
    app.add_flag("--pin", given.flags.pin, "write what snug decides by itself (sharding, offloading) as theirs has it");
  } else {
    app.add_option("job", given.job_file, "job file (YAML) with any of these options as keys; flags win");
  }
  if (command == "generate") {
    app.add_option("--prompt", given.flags.prompts, "a prompt; may be repeated")->allow_extra_args(false);
    app.add_option("--prompts", given.flags.prompts_file,
                   "a data file of {\"prompt\": ...}, or a .txt with a prompt a line");
  }
  if (command == "generate" || command == "chat") {
    app.add_option("--image", given.flags.images,
                   "an image, for a model that takes them, before the prompt or in the place of its <image>; may be "
                   "repeated")
        ->allow_extra_args(false);
    app.add_option("--max-new-tokens", given.flags.max_new_tokens, "(256)")->check(CLI::Range(1, 1 << 20));
    SamplingOptions& sampling = given.flags.sampling;
    const auto number = [&](const char* name, double& value, double least, double most, const char* help) {
      app.add_option(name, value, help)->check(CLI::Range(least, most))->check([=](const std::string& text) {
        return std::isnan(std::strtod(text.c_str(), nullptr))
                   ? fmt::format("found no number, expected {} to {}", least, most)
                   : "";
      });
    };
    number("--temperature", sampling.temperature, 0, 100, "0 = always the likeliest token (0)");
    app.add_option("--top-k", sampling.top_k, "draw from so many of the likeliest tokens; 0 = from all (0)")
        ->check(CLI::Range(0, 1 << 24));
    number("--top-p", sampling.top_p, 1e-9, 1,
           "draw from the fewest of the likeliest tokens that have this probability (1)");
    number("--min-p", sampling.min_p, 0, 1,
           "draw from tokens that are at least this part as likely as the likeliest (0)");
    number("--repetition-penalty", sampling.repetition_penalty, 0.01, 100,
           "above 1, tokens that the text holds already become less likely (1)");
    app.add_option("--stop", given.flags.stop, "a text at which replies end, before it; may be repeated")
        ->allow_extra_args(false);
    app.add_option("--system", given.flags.system, "the system text of every conversation")->allow_extra_args(false);
  }
  if (command == "export")
    app.add_option("--format", given.flags.format,
                   "f16, bf16, q8_0 or q4_k_m: the model, with its adapter as one; adapter: the adapter alone (q8_0)");
  if (command == "eval")
    app.add_flag("--scores", given.flags.scores, "objective reward: print the scores of each pair too");
  if (command == "tokenize")
    app.add_flag("--text", given.flags.text, "read standard input: a text a line, as it is or as a JSON string");
}

JobConfig options_over(const std::string& job_file, const Given& given) {
  JobConfig options;
  if (!job_file.empty()) read_job_file(job_file, options);
  for (const auto& [key, values] : given.values) {
    const OptionSpec& spec = find_option(key, "command line");
    if (values.empty()) continue;
    const bool bare_flag = spec.is_bool() && (values.back().empty() || values.back() == "{}");
    const std::string text = spec.is_list() ? fmt::format("{}", fmt::join(values, ",")) : values.back();
    spec.set(options, bare_flag ? "true" : text);
    options.flags.insert(spec.key);
  }
  return options;
}

// Returns the job file's options with the flags over them. A run that is resumed without a job file uses its own.
JobConfig effective_options(Given given) {
  for (auto& [key, values] : given.values) {  // 'snug train --resume job.yaml': the word after a bare flag
    if (!find_option(key, "command line").is_bool() || values.empty() || !given.job_file.empty()) continue;
    if (!values.back().ends_with(".yaml") && !values.back().ends_with(".yml")) continue;
    given.job_file = std::exchange(values.back(), "true");
  }
  JobConfig options = options_over(given.job_file, given);
  const std::filesystem::path own = std::filesystem::path(options.out) / "job.yaml";
  if (options.resume && given.job_file.empty() && !options.out.empty() && is_file(own))
    options = options_over(own, given), options.given = options.flags;
  return options;
}

// Returns a flag with dashes. Job files spell keys with '_', flags with '-': the command line takes both, also in
// '--learning_rate=1'.
std::string with_dashes(std::string word) {
  if (!word.starts_with("--")) return word;
  std::replace(word.begin(), word.begin() + static_cast<ptrdiff_t>(std::min(word.find('='), word.size())), '_', '-');
  return word;
}

// Returns the options of a command, as job files spell them.
std::vector<std::string> taken_by(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (std::string name : option->get_lnames()) {
      std::ranges::replace(name, '-', '_');
      names.push_back(std::move(name));
    }
  return names;
}

// Returns how many words are snug's own: those before a '--', behind which stands another program's command.
size_t own_words(const std::vector<std::string>& words) {
  return static_cast<size_t>(std::ranges::find(words, "--") - words.begin());
}

// Refuses the first unknown flag with what snug calls it, as an unknown key of a job file is refused.
void explain_unknown_flags(const std::vector<std::string>& words, const CLI::App& app, const Command& command) {
  for (size_t i = 2; i < own_words(words); i++) {
    const size_t begin = words[i].find_first_not_of('-');
    if (begin == 0 || begin == words[i].npos || !std::isalpha(static_cast<unsigned char>(words[i][begin]))) continue;
    const std::string key = words[i].substr(begin, words[i].find('=') - begin);
    if (begin == 2 && app.get_option_no_throw(with_dashes("--" + key))) continue;
    const OptionSpec& spec = find_option(key, "command line", taken_by(app));
    if (!command.takes(spec.key)) user_error("command line: 'snug {}' does not take '--{}'", command.name, key);
  }
}

// Explains what CLI11 found wrong, in one sentence.
[[noreturn]] void explain(const CLI::ParseError& error, const std::vector<std::string>& words, const CLI::App& app,
                          const std::vector<Command>& all) {
  const std::string text = error.what();
  const std::string word = words.size() > 1 ? words[1] : "";
  const auto command = std::ranges::find(all, word, &Command::name);
  if (command == all.end()) {
    std::vector<std::string> names;
    for (const Command& known : all) names.push_back(known.name);
    user_error("command line: found {}, expected a command: {}; 'snug --help' says more",
               word.empty() ? "nothing" : "'" + word + "'", fmt::join(names, ", "));
  }
  explain_unknown_flags(words, *app.get_subcommand(word), *command);
  // A shell makes several words of 'data/*.jsonl'.
  for (const std::string& more : app.remaining(true))
    if (more != word) refuse_as_job_file(more);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error))
    user_error("command line: '{}' needs a value", text.substr(0, text.find(':')));
  user_error("command line: {}; 'snug {} --help' lists the options", text, word);
}

// Prints the table of options in one of its forms.
int print_options(const std::string& form, const CLI::App& app) {
  if (form != "bash") {
    fmt::print("{}", form == "markdown" ? options_page()
                     : form == "man"    ? man_page(SNUG_VERSION, commands())
                                        : job_schema() + "\n");
    return kDone;
  }
  std::vector<CommandWords> words;
  for (const Command& command : commands()) {
    words.push_back({command.name, {}});
    for (const std::string& name : taken_by(*app.get_subcommand(command.name)))
      words.back().flags.push_back(with_dashes("--" + name));
  }
  fmt::print("{}", bash_completion(words));
  return kDone;
}

int dispatch(int argc, char** argv) {
  CLI::App app{
      "snug: fine-tunes large language models on the machine one has; says beforehand, to the byte, what it "
      "takes.\nEvery option is also a key of the job file (snug train job.yaml); sizes read 24GiB, 512MiB.",
      "snug"};
  app.require_subcommand(1);
  app.formatter(std::make_shared<OnceFormatter>());
  app.set_version_flag("--version", "snug " SNUG_VERSION);
  const std::vector<Command>& all = commands();
  std::vector<Given> given(all.size());
  for (size_t i = 0; i < all.size(); i++) {
    CLI::App* sub = app.add_subcommand(all[i].name, all[i].help);
    add_command_flags(*sub, all[i].name, given[i]);
    for (const OptionSpec& spec : option_specs()) {
      if (all[i].name == "generate" && spec.key == "prompt") continue;  // there --prompt is the text itself
      if (all[i].takes(spec.key)) add_option(*sub, spec, given[i]);
    }
  }
  const std::vector<std::string> words(argv, argv + argc);
  std::vector<std::string> flags;  // CLI11 takes them from the back
  for (size_t i = words.size(); i-- > 1;) flags.push_back(i < own_words(words) ? with_dashes(words[i]) : words[i]);
  try {
    app.parse(flags);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    explain(error, words, app, all);
  }
  for (size_t i = 0; i < all.size(); i++)
    if (app.got_subcommand(all[i].name)) {
      if (all[i].name == "schema") return print_options(given[i].flags.format, app);
      JobConfig options = effective_options(given[i]);
      if (!all[i].on_ranks) require_one_process(all[i].name);
      const FileLock used = find_job(options,
                                     all[i].name != "tokenize" ? Needed::Weights
                                     : given[i].flags.text     ? Needed::Tokenizer
                                                               : Needed::Config,
                                     all[i].needs_model);
      return all[i].run(options, given[i].flags);
    }
  return kUser;
}

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  name_options_as_flags();
  end_in_words();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error of the write, as a full disk is
  try {
    const int code = dispatch(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) return fail(kMachine, "standard output: cannot write to it");
    return code;
  } catch (...) {
    return fail(std::current_exception());
  }
}
