// The commands: each takes the options it was given and returns the exit code of success.
#pragma once

#include "cli/options.h"

namespace snug {

// What commands take beside the options of the job file.
struct CommandFlags {
  bool json = false, verbose = false;  // the second: plan
  std::vector<std::string> prompts;    // generate
  std::string prompts_file;
  int64_t max_new_tokens = 256;
  double temperature = 0;
  std::string file;                  // import: the GGUF file
  std::string disk_directory = ".";  // doctor: whose disk is measured
  std::string format = "q8_0";       // export
  bool text = false;                 // tokenize: standard input instead of a data set
  std::vector<std::string> runs;     // report
};

int plan_command(Options options, const CommandFlags& flags);
int train_command(Options options, const CommandFlags& flags);
int eval_command(Options options, const CommandFlags& flags);
int generate_command(Options options, const CommandFlags& flags);
int chat_command(Options options, const CommandFlags& flags);
int merge_command(Options options, const CommandFlags& flags);
int export_command(Options options, const CommandFlags& flags);
int import_command(const Options& options, const CommandFlags& flags);
int doctor_command(const Options& options, const CommandFlags& flags);
int report_command(const Options& options, const CommandFlags& flags);
int tokenize_command(const Options& options, const CommandFlags& flags);

}  // namespace snug
