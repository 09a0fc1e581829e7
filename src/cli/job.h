// From options to what is compiled.
#pragma once

#include "cli/options.h"
#include "plan/fit.h"

namespace snug {

// The job without cut and strategy; reads config.json, the adapter's configuration and the headers of weight files.
JobSpec make_job(const Options& options, Purpose purpose);

// The adapter that is trained, evaluated or merged: of --adapter, or of the lora options.
AdapterSpec adapter_of(const Options& options);

// What the user pinned of cut and strategy.
Choices choices_of(const Options& options);

// What this process may take. On the CPU device and host are one memory.
Caps caps_of(const Options& options);

int thread_count(const Options& options);

struct Planned {
  JobSpec spec;  // with the chosen cut and strategy, if one fits
  FitResult fit;
  Caps caps;
};

// Searches arrangements for a training job; for others there is one.
Planned plan_job(const Options& options, Purpose purpose, bool evaluate);

// CapacityError that says what the cheapest arrangement needs, what is allowed and what would help, if none fits.
void require_fit(const Planned& planned, const Options& options);

}  // namespace snug
