// What a few hundred jobs are compiled to, one line each: a hash of every op of every program, with buffers numbered by
// their first use, and the bytes of the arenas. Names of ops and buffers are left out, so a change of the code that
// makes programs either leaves all lines as they are or shows which jobs it changes.
//
//   census                      prints all lines
//   census --check FILE         compares them with the file's; exit 1 if any differs
//   census --programs JOB       prints the programs of one job as they are hashed
#include <gtest/gtest.h>

#include <fstream>

#include "arranged.h"
#include "backend/cuda/facts.h"
#include "base/hash.h"
#include "base/rng.h"
#include "flat_facts.h"

namespace snug {
namespace {

struct CensusJob {
  std::string name;
  JobSpec spec;
};

// ---- The jobs -------------------------------------------------------------------------------------------------------

struct Kind {
  std::string family;
  bool lora;
  DType compute;
  std::string special;  // what is unlike the usual numerics; empty for nothing
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const char* family : {"llama", "llama3", "llama16", "llama_gqa7", "qwen2", "qwen2_tied", "qwen2_window"})
    for (const bool lora : {true, false})
      for (const DType compute : {DType::BF16, DType::F32}) all.push_back({family, lora, compute, ""});
  for (const char* family : {"llama", "qwen2"})
    for (const char* special : {"int8", "fp8", "dropout", "bf16_sums", "every_step"})
      all.push_back({family, true, DType::BF16, special});
  all.push_back({"llama", true, DType::BF16, "nf4"});
  all.push_back({"llama", true, DType::BF16, "fp8_products"});
  for (const char* special : {"fp8_products", "bit8", "bf16_state", "bf16_sums", "every_step", "unclipped"})
    all.push_back({"qwen2", false, DType::BF16, special});
  for (const char* family : {"granite", "gemma3", "gemma2", "olmo2", "hunyuan", "cohere2", "ministral3"})
    for (const bool lora : {true, false}) all.push_back({family, lora, DType::BF16, ""});
  for (const char* family : {"llama", "qwen2", "granite"})
    for (const char* special : {"dora", "dora_int8", "dora_dropout"})
      all.push_back({family, true, DType::BF16, special});
  for (const char* objective : {"dpo", "kto"})
    for (const bool lora : {true, false}) all.push_back({"qwen2", lora, DType::BF16, objective});
  for (const char* special : {"terms", "noise"})
    for (const bool lora : {true, false}) all.push_back({"granite", lora, DType::BF16, special});
  for (const char* family : {"cohere_norms", "stablelm_norms"})
    for (const bool lora : {true, false}) all.push_back({family, lora, DType::BF16, ""});
  for (const bool lora : {true, false}) all.push_back({"qwen2", lora, DType::BF16, "distill"});
  for (const char* family : {"arcee",    "cohere",     "ernie4_5", "exaone4",    "gemma",  "glm",  "glm4",
                             "granite4", "llama_bias", "mistral",  "nemotron",   "olmo3",  "phi3", "qwen3",
                             "seed_oss", "smollm3",    "stablelm", "starcoder2", "helium", "cwm"})
    for (const bool lora : {true, false}) all.push_back({family, lora, DType::BF16, ""});
  for (const char* family : {"llama_linear", "llama_yarn", "llama_longrope", "mistral3", "gemma3_vision"})
    for (const bool lora : {true, false}) all.push_back({family, lora, DType::BF16, ""});
  return all;
}

JobSpec job_of(const Kind& kind) {
  const std::string& special = kind.special;
  TinyCase tiny{kind.family, kind.lora, kind.compute, 1};
  if (special.starts_with("dora")) tiny.dora = special == "dora_dropout" ? 0.25 : 0;
  if (special == "dora_int8") tiny.base = BaseFormat::Int8;
  JobSpec spec = tiny.job();
  Numerics& n = spec.numerics;
  if (special == "int8") n.base_format = BaseFormat::Int8;
  if (special == "nf4") n.base_format = BaseFormat::Nf4;
  if (special == "fp8") n.base_format = BaseFormat::Fp8;
  if (special == "fp8_products") {
    n.fp8_products = true;
    if (kind.lora) n.base_format = BaseFormat::Fp8;
    spec.cut.sequence_length = 48;  // a multiple of kFp8Multiple
  }
  if (special == "bit8") n.state = StateFormat::Bit8;
  if (special == "bf16_state") n.state = StateFormat::Bf16;
  if (special == "bf16_sums") n.accumulator = DType::BF16;
  if (special == "every_step") n.reduce_once_per_step = true;
  if (special == "unclipped") n.max_grad_norm = 0;
  if (special == "dpo" || special == "kto") spec.objective.kind = objective_from_name(special);
  if (special == "distill") spec.objective.kind = ObjectiveKind::Distill, spec.objective.reference = Reference::Model;
  if (special == "terms") spec.objective.label_smoothing = 0.125, spec.objective.z_loss = 0.25;
  if (special == "noise") n.neftune_alpha = 5;
  if (special == "dropout")
    for (LayerParams& block : spec.table.layers)
      for (Linear* linear : {&block.qkv, &block.o, &block.gate_up, &block.down}) linear->lora.dropout = 0.25;
  return spec;
}

Arrangement drawn(const Random& random, uint64_t number) {
  const auto draw = [&](uint64_t what, uint64_t bound) { return random.below(32 * number + what, bound); };
  Arrangement a;
  a.ranks = 1 << draw(0, 3);
  a.passes = int64_t{1} << draw(1, 2);
  a.zero = static_cast<int>(draw(2, 4));
  a.recompute = static_cast<Recompute>(draw(3, 4));
  a.states = space_of(draw(4, 3));
  a.gradients = space_of(draw(5, 3));
  a.weights = space_of(draw(6, 3));
  a.inputs = space_of(draw(7, 3));
  a.share = static_cast<int>(draw(8, 3));
  a.layer_major = draw(9, 2) == 0;
  a.deferred = draw(10, 2) == 0;
  a.speculative = draw(11, 2) == 0;
  a.in_backward = draw(12, 2) == 0;
  a.offload = static_cast<uint8_t>(draw(13, 32));
  if (a.ranks > 1 && draw(14, 3) == 0) a.replicas = 2;
  return a;
}

JobSpec used(const std::string& family, Purpose purpose) {
  JobSpec spec;
  spec.purpose = purpose;
  spec.model = read_model_config(models() / family).spec;
  SourceRequest request{models() / family, false, 1, std::nullopt};
  if (purpose == Purpose::Merge) request.adapter = models() / family / "adapter_init";
  spec.table = purpose == Purpose::Merge ? lora_parameters(spec.model, read_peft_config(*request.adapter), true)
                                         : full_parameters(spec.model, false);
  spec.sources = find_sources(spec.table, request);
  spec.numerics.logits_chunk_rows = 32;
  if (purpose == Purpose::Merge) spec.numerics.base = DType::F32;
  spec.cut.sequence_length = purpose == Purpose::Generate ? 1 : 40;
  if (purpose == Purpose::Generate) spec.cache_positions = 100;
  spec.strategy = plain_strategy(spec.table);
  return spec;
}

// A model of true sizes, whose weights the seed draws.
JobSpec large(const std::string& config, bool lora, int ranks, int zero) {
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs" / config;
  JobSpec spec;
  spec.model = read_model_config(model).spec;
  spec.model.layers.resize(4);
  if (lora) {
    spec.rules.adapter = PeftConfig{.rank = 16, .alpha = 32, .target_modules = linear_names(spec.model)};
    spec.table = lora_parameters(spec.model, *spec.rules.adapter, true);
  } else {
    spec.table = full_parameters(spec.model, true);
  }
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.cut.ranks = ranks;
  spec.cut.passes = 2;
  spec.strategy = plain_strategy(spec.table, lora ? Recompute::None : Recompute::Block);
  set_zero_stage(spec.strategy, zero);
  return spec;
}

void each_job(const std::function<void(const CensusJob&)>& use) {
  constexpr uint64_t kArrangements = 8;  // of each kind; the first keeps everything on the device of one rank
  const Random random(36, RandomPurpose::DataOrder);
  uint64_t number = 0;
  for (const Kind& kind : kinds()) {
    const JobSpec job = job_of(kind);
    for (uint64_t i = 0; i < kArrangements; i++, number++) {
      Arrangement a = i == 0 ? Arrangement{} : drawn(random, number);
      if (kind.special == "unclipped")
        a.speculative = false;
      else
        a.in_backward = false;
      const auto rank = static_cast<int>(random.below(32 * number + 15, static_cast<uint64_t>(a.ranks)));
      use({fmt::format("{} {} {}{}{}: rank {} of {}", kind.family, kind.lora ? "lora" : "full", name(kind.compute),
                       kind.special.empty() ? "" : " ", kind.special, rank, to_string(a)),
           arranged(job, a, rank)});
    }
  }
  for (const char* family :
       {"llama", "llama3", "llama16", "llama_gqa7", "qwen2", "qwen2_tied", "qwen2_window", "granite", "gemma3",
        "gemma2", "olmo2", "hunyuan", "cohere2", "ministral3", "cohere_norms", "stablelm_norms"})
    for (const auto& [purpose, word] : {std::pair(Purpose::Evaluate, "evaluate"),
                                        std::pair(Purpose::Generate, "generate"), std::pair(Purpose::Merge, "merge")})
      use({fmt::format("{} {}", family, word), used(family, purpose)});
  for (const char* config : {"llama-3-8b", "llama-3-70b", "qwen2-72b"})
    for (const bool lora : {true, false})
      for (const auto& [ranks, zero] : {std::pair(1, 0), std::pair(8, 3)})
        use({fmt::format("{} {}, 4 layers, {} ranks, zero {}", config, lora ? "lora" : "full", ranks, zero),
             large(config, lora, ranks, zero)});
}

// ---- What they are compiled to --------------------------------------------------------------------------------------

// The programs of a job as text without names.
class Spelling {
 public:
  explicit Spelling(const Compiled& compiled) : set_(compiled.set) {
    for (const auto& [key, program] : compiled.programs)
      if (!key.in_back_buffer) spell(fmt::format("{}", name(key.task)), program);
    for (const auto& [key, program] : compiled.programs)
      if (key.in_back_buffer) spell(fmt::format("{}, turned", name(key.task)), program);
  }
  const std::string& text() const { return text_; }
  size_t ops() const { return ops_; }

 private:
  void spell(const std::string& title, ProgramId id) {
    const Program& program = set_.programs[id];
    text_ += title + "\n";
    const std::string dump = set_.dump(id);
    size_t line = dump.find('\n') + 1;
    for (const Op& op : program.ops) {
      const size_t end = dump.find('\n', line);
      const size_t kind = dump.find(": ", line) + 2;
      text_ += fmt::format("{} {}", name(op.lane), dump.substr(kind, std::min(dump.find(" |", kind), end) - kind));
      for (const Operand& operand : op.operands) spell(operand);
      text_ += fmt::format(" {} {} {}\n", op.pass, op.min_loss_rows, op.retire);
      line = end + 1;
      ops_++;
    }
  }

  void spell(const Operand& operand) {
    const auto [number, first] = numbers_.try_emplace(operand.buffer, numbers_.size());
    text_ += fmt::format(", {}{} {} [{}] at {} by {}", "rwm"[static_cast<size_t>(operand.access)], number -> second,
                         snug::name(operand.dtype),
                         fmt::join(std::span(operand.shape.dims).first(static_cast<size_t>(operand.shape.rank)), " "),
                         operand.offset, operand.row_stride);
    if (!first) return;
    const Buffer& buffer = set_.buffers[operand.buffer];
    text_ += fmt::format(" ({} bytes on {}, {}, {})", buffer.bytes, name(buffer.space), name(buffer.role),
                         static_cast<int>(buffer.life));
  }

  const ProgramSet& set_;
  std::map<BufferId, size_t> numbers_;
  std::string text_;
  size_t ops_ = 0;
};

std::string line_of(const CensusJob& job) {
  std::string line = job.name;
  const FlatFacts flat;
  const CudaFacts cuda;
  for (const auto& [word, facts] : {std::pair<const char*, const OpFacts*>("flat", &flat), {"cuda", &cuda}}) {
    const Compiled compiled = compile(job.spec, *facts);
    const Spelling spelling(compiled);
    line += fmt::format("; {} {} ops {}, {} bytes", word, spelling.ops(),
                        hex(hash_of(std::string_view(spelling.text()))), fmt::join(compiled.plan.reserved_bytes, " "));
  }
  return line;
}

int check_against(const char* path) {
  std::ifstream file(path);
  size_t jobs = 0, differences = 0;
  std::string expected;
  const auto expect = [&](const std::string& line) {
    if (line == expected) return;
    differences++;
    fmt::print("- {}\n+ {}\n", expected, line);
  };
  each_job([&](const CensusJob& job) {
    expected.clear();
    std::getline(file, expected);
    expect(line_of(job));
    jobs++;
  });
  while (std::getline(file, expected)) expect("");
  fmt::print("{} jobs, {} differ\n", jobs, differences);
  return differences == 0 ? 0 : 1;
}

void print_programs(const char* name) {
  each_job([&](const CensusJob& job) {
    if (job.name == name) fmt::print("{}", Spelling(compile(job.spec, FlatFacts())).text());
  });
}

int census(int count, char** arguments) {
  set_threads(1);
  const std::string_view word = count > 1 ? arguments[1] : "";
  if (word == "--check" && count > 2) return check_against(arguments[2]);
  if (word == "--programs" && count > 2) return print_programs(arguments[2]), 0;
  each_job([](const CensusJob& job) { fmt::print("{}\n", line_of(job)); });
  return 0;
}

}  // namespace
}  // namespace snug

int main(int count, char** arguments) { return snug::census(count, arguments); }
