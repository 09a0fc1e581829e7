// Declares the commands: each takes the options it was given and returns the exit code of success.
#pragma once

#include "api/options.h"
#include "train/sampling.h"

namespace snug {

// Holds what commands take besides the options of the job file.
struct CommandFlags {
  bool json = false, verbose = false;  // verbose: plan
  std::vector<std::string> prompts;    // generate
  std::string prompts_file;
  std::vector<std::string> images;   // generate and chat: files that prompts come with
  int64_t max_new_tokens = 256;      // generate and chat, as the next three
  SamplingOptions sampling;          // but the seed, which is an option
  std::vector<std::string> stop;     // texts that end a reply
  std::string system;                // the system text of every conversation
  std::string file;                  // import: the GGUF file or model
  std::string disk_directory = ".";  // doctor: whose disk is measured
  std::string format = "q8_0";       // export
  bool text = false;                 // tokenize: reads standard input instead of a data set
  bool scores = false;               // eval: prints the score of every reply
  std::vector<std::string> runs;     // report, explain
  bool serve = false;                // report: to browsers of this machine, instead of writing a file
  uint16_t port = 0;                 //   0: one that is free
  std::vector<std::string> words;    // translate, as the next two: a file, or a command
  std::string from;                  // whose options they are
  bool pin = false;                  // also what snug decides by itself
};

int plan_command(JobConfig options, const CommandFlags& flags);
int train_command(JobConfig options, const CommandFlags& flags);
int init_command(JobConfig options, const CommandFlags& flags);
int eval_command(JobConfig options, const CommandFlags& flags);
int generate_command(JobConfig options, const CommandFlags& flags);
int chat_command(JobConfig options, const CommandFlags& flags);
int merge_command(JobConfig options, const CommandFlags& flags);
int export_command(JobConfig options, const CommandFlags& flags);
int import_command(const JobConfig& options, const CommandFlags& flags);
int doctor_command(const JobConfig& options, const CommandFlags& flags);
int explain_command(const JobConfig& options, const CommandFlags& flags);
int report_command(const JobConfig& options, const CommandFlags& flags);
int translate_command(const JobConfig& options, const CommandFlags& flags);
int tokenize_command(const JobConfig& options, const CommandFlags& flags);

}  // namespace snug
