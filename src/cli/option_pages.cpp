#include "cli/option_pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace snug {
namespace {

using Json = nlohmann::ordered_json;

// Returns the words of an option, and those which a file spells as numbers.
Json words_of(const ValueType& type) {
  Json words = Json::array();
  for (const std::string& word : type.words) {
    words.push_back(word);
    if (std::ranges::all_of(word, [](char c) { return '0' <= c && c <= '9'; })) words.push_back(std::stoll(word));
  }
  return words;
}

// Returns the schema of an option's values. A text of YAML may look like a number.
Json schema_of(const ValueType& type) {
  const Json texts = {"string", "number", "boolean"};
  const auto numbers = [&](const char* name) {
    Json schema{{"type", name}};
    if (type.least) schema["minimum"] = *type.least;
    if (type.most) schema["maximum"] = *type.most;
    return schema;
  };
  switch (type.kind) {
    case ValueKind::Word:
      return {{"enum", words_of(type)}};
    case ValueKind::Integer:
      return numbers("integer");
    case ValueKind::Number:
      return numbers("number");
    case ValueKind::Bool:
      return {{"type", "boolean"}};
    case ValueKind::Size:
      return {{"type", {"string", "integer"}}, {"pattern", "^[0-9.]+ ?([KMGT]iB|[kMGT]?B)?$"}};
    case ValueKind::Cadence:
      return {{"type", {"string", "integer"}}, {"pattern", "^([0-9]+(s|min|h)?|epoch)$"}};
    case ValueKind::List:
      return {{"anyOf", {{{"type", texts}}, {{"type", "array"}, {"items", {{"type", texts}}}}}}};
    case ValueKind::Map:
      return {{"anyOf",
               {{{"type", "string"}},
                {{"type", "array"}, {"items", {{"type", "string"}}}},
                {{"type", "object"}, {"additionalProperties", {{"type", texts}}}}}}};
    case ValueKind::Text:
      break;
  }
  return {{"type", texts}};
}

std::string escaped(const std::string& text) {
  std::string cell;
  for (const char c : text) cell += c == '|' ? std::string("\\|") : c == '<' ? "&lt;" : std::string{c};
  return cell;
}

std::string meaning_with_words(const OptionSpec& spec) {
  if (spec.type.words.empty()) return spec.meaning();
  return fmt::format("{} ({})", spec.meaning(), fmt::join(spec.type.words, ", "));
}

}  // namespace

std::string flag_of(const OptionSpec& spec) {
  std::string name = spec.key;
  std::ranges::replace(name, '_', '-');
  return "--" + name;
}

std::string value_name(const ValueType& type) {
  switch (type.kind) {
    case ValueKind::Bool:
      return "";
    case ValueKind::Word:
      return "WORD";
    case ValueKind::Integer:
      return "INT";
    case ValueKind::Number:
      return "FLOAT";
    case ValueKind::Size:
      return "SIZE";
    case ValueKind::Cadence:
      return "WHEN";
    case ValueKind::List:
      return "A,B,...";
    case ValueKind::Map:
      return "A=B,...";
    case ValueKind::Text:
      break;
  }
  return "TEXT";
}

std::string help_line(const OptionSpec& spec) {
  const std::string value = spec.default_text();
  return value.empty() ? meaning_with_words(spec) : fmt::format("{}  [{}]", meaning_with_words(spec), value);
}

std::string job_schema() {
  Json properties{{"format", {{"description", "version of the file's form"}, {"type", "integer"}, {"const", 1}}}};
  for (const OptionSpec& spec : option_specs()) {
    Json option = schema_of(spec.type);
    option["description"] = spec.help;
    properties[spec.key] = std::move(option);
  }
  return Json{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", "job file of snug"},
              {"type", "object"},
              {"additionalProperties", false},
              {"properties", std::move(properties)}}
      .dump(2);
}

std::string options_page() {
  std::string page =
      "# Options\n\nEvery option is a key of the job file (`snug train job.yaml`) and a flag (`--learning-rate 2e-4`), "
      "which wins. Sizes\nread 24GiB, 80GB or 512MiB; WHEN is a number of steps, `epoch`, or a duration such as 30min. "
      "Relative paths begin in the\nworking folder, those of a job file too, wherever it lies; the job file that a run "
      "writes has absolute ones. This page is what\n`snug schema --as markdown` prints; `snug schema` prints a schema "
      "for editors.\n";
  std::string group;
  for (const OptionSpec& spec : option_specs()) {
    if (spec.group != group) {
      group = spec.group;
      page += fmt::format("\n## {}\n\n| option | value | default | meaning |\n|---|---|---|---|\n", group);
    }
    const std::string value = spec.is_bool() ? "true, false" : value_name(spec.type);
    page += fmt::format("| `{}` | {} | {} | {} |\n", spec.key, value, escaped(spec.default_text()),
                        escaped(meaning_with_words(spec)));
  }
  return page;
}

namespace {

// Returns a text of which man takes nothing for its own: a dash is one of the keyboard's, and no line is a command.
std::string in_roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if ((out.empty() || out.back() == '\n') && (c == '.' || c == '\'')) out += "\\&";
    out += c == '-' ? "\\-" : c == '\\' ? "\\e" : std::string{c};
  }
  return out;
}

}  // namespace

std::string man_page(const std::string& version, const std::vector<Command>& commands) {
  std::string page = fmt::format(
      ".TH SNUG 1 \"\" \"snug {}\"\n.SH NAME\nsnug \\- fine-tune large language models on the machine one has\n"
      ".SH SYNOPSIS\n.B snug\n.I COMMAND\n[\n.I JOB.YAML\n] [\n.I OPTIONS\n]\n.SH DESCRIPTION\n"
      "Says, to the byte, what a job takes before it starts, picks the fastest arrangement that fits, and runs it.\n"
      "Every option is a key of the job file, with underscores, and a flag, which wins.\n.SH COMMANDS\n",
      in_roff(version));
  for (const Command& command : commands)
    page += fmt::format(".TP\n.B {}\n{}\n", in_roff(command.name), in_roff(command.help));
  page += ".P\n.B snug\n.I COMMAND\n.B \\-\\-help\nlists what a command takes.\n";
  std::string group;
  for (const OptionSpec& spec : option_specs()) {
    if (spec.group != group) {
      group = spec.group;
      page += fmt::format(".SH \"{}\"\n", in_roff(group));
    }
    page += fmt::format(".TP\n.B {}{}\n{}\n", in_roff(flag_of(spec)),
                        spec.is_bool() ? "" : fmt::format(" \\fI{}\\fR", in_roff(value_name(spec.type))),
                        in_roff(help_line(spec)));
  }
  return page +
         ".SH \"EXIT STATUS\"\n0; 2 where options, files or data are not as they should be; 3 where nothing fits; 4 "
         "where "
         "the machine, a GPU or another rank failed; 130 after an interrupt; 1 for a bug.\n";
}

std::string bash_completion(const std::vector<CommandWords>& commands) {
  std::string names, flags, words;
  for (const CommandWords& command : commands) {
    names += (names.empty() ? "" : " ") + command.name;
    flags += fmt::format("    {}) words=\"{}\" ;;\n", command.name, fmt::join(command.flags, " "));
  }
  for (const OptionSpec& spec : option_specs())
    if (spec.type.kind == ValueKind::Word)
      words += fmt::format("    {}) words=\"{}\" ;;\n", flag_of(spec), fmt::join(spec.type.words, " "));
  return fmt::format(R"(# Completes snug's command lines: source <(snug schema --as bash)
_snug() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{}" -- "$word"))
    return
  fi
  case $before in
{}  esac
  if [ -z "$words" ] && [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{}    esac
  fi
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _snug snug
)",
                     names, words, flags);
}

}  // namespace snug
