// Writes what a run leaves for other programs: PEFT adapters and Hugging Face model directories. All ranks call these
// functions; rank 0 writes.
#pragma once

#include <functional>

#include "train/session.h"

namespace snug {

// Writes what else belongs in a directory; rank 0 calls it before the directory takes its name.
using WriteExtraFiles = std::function<void(const std::filesystem::path& directory)>;

// Replaces `directory` by the PEFT adapter of a session that trained one (or continued from one). `adapter` lacks its
// base model, which is given by `base_model`.
void export_adapter(Session& session, const std::filesystem::path& directory, const PeftConfig& adapter,
                    const std::filesystem::path& base_model, const WriteExtraFiles& write_extra = {});

// Writes the adapter_config.json of an adapter on `base_model`.
void write_adapter_config(const std::filesystem::path& directory, PeftConfig adapter,
                          const std::filesystem::path& base_model);

// Copies into `directory` what lies beside the weights of the model `source`, with config.json adapted to what the job
// writes.
void write_side_files(const std::filesystem::path& directory, const std::filesystem::path& source, const JobSpec& spec,
                      const Heartbeat& heartbeat = {});

// Makes `directory` a model directory: weights, and the side files of `source`.
void export_model(Session& session, const std::filesystem::path& directory, const std::filesystem::path& source,
                  Existing existing, const WriteExtraFiles& write_extra = {});

}  // namespace snug
