// Declares how values of several programs become snug's.
#pragma once

#include "translate/translator.h"

namespace snug::rules {

// Holds a setting by the row's name, judged later with others.
// Data in files stays; ids of data on a hub do not.
void resume(Translator& t, const Setting& setting, const Row& row);
// report_to and its like: tensorboard and csv are written, others are not.
void trackers(Translator& t, const Setting& setting, const Row& row);
// Boolean options that mean the opposite of snug's key.
void inverted(Translator& t, const Setting& setting, const Row& row);
// Numbers below 1, or -1, that mean never or no limit.
void logging(Translator& t, const Setting& setting, const Row& row);
// optim_args and the like: nothing, or refused.
void seed(Translator& t, const Setting& setting, const Row& row);
// Switches of recomputing: on pins the row's key, off pins `recompute: none`.
void recompute(Translator& t, const Setting& setting, const Row& row);
// ZeRO's stage, or a word of FSDP's for it.
void zero_stage(Translator& t, const Setting& setting, const Row& row);
// Where something is offloaded to: none, cpu or nvme.
void offload(Translator& t, const Setting& setting, const Row& row);
// Refuses a value other than the row's `ours`, which is theirs alone and means what snug does.
void only(Translator& t, const Setting& setting, const Row& row);
// LD-DPO's weight of tokens that a reply has beyond the length of the other: 1 is none.
void tail_weight(Translator& t, const Setting& setting, const Row& row);
// Flags such as do_train, which choose the command.
void command(Translator& t, const Setting& setting, const Row& row);
// A file that is read too, as its own options say.
void file_read(Translator& t, const Setting& setting, const Row& row);

}  // namespace snug::rules
