// A machine as data: what `snug doctor` measures and what the ops of a plan are priced by.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "program/facts.h"
#include "program/topology.h"

namespace snug {

// A rate by size. Between two sizes the time grows evenly, as of a fixed cost and a rate beyond it; beyond the ends the
// rate stays.
struct RateCurve {
  std::vector<double> sizes, rates;  // sizes rise; at least one
  double at(double size) const;
};

// Operations a second of products [m, k] x [k, n], for every m, n and k of Machine::product_sizes; between those,
// seconds grow evenly along every side. Those of codes in fp8 stand under U8.
struct ProductRates {
  DType dtype = DType::BF16;
  bool transpose_a = false, transpose_b = false, addend = false;
  std::vector<double> flops;  // by m, then n, then k
};

// As work() counts them, by the length of the documents.
struct AttentionRates {
  DType dtype = DType::BF16;
  bool backward = false;
  int64_t head_dim = 64;
  RateCurve flops;
};

// Bytes a second of a kind of op without products, by the bytes it reads and writes.
struct KindRates {
  std::string kind;  // as kind() names it
  DType dtype = DType::BF16;
  RateCurve bytes;
};

// Of what runs ops: a team of threads, or a card. `flops`, `fp8_flops` and `copy` stand for what the tables lack.
struct Rates {
  double op_seconds = 0;            // that an op costs before it does anything
  double flops = 0, fp8_flops = 0;  // the second is 0 where there are no products in fp8
  RateCurve copy;                   // bytes read and written a second
  std::vector<ProductRates> products;
  std::vector<AttentionRates> attention;
  std::vector<KindRates> kinds;
};

struct TeamRates : Rates {
  int threads = 1;
};

// Bytes a second between a card and the host's arena, both ways at once.
struct Bus {
  double to_device = 0, from_device = 0;
};

// What connects ranks on cards of one host.
struct CardLink {
  uint64_t bytes = 0;  // taken of each card
  double rate = 0;     // bytes a second that a card takes from the others of its host, all of them at it
  int blocks = 0;      // of threads, the most that one lane takes of a card; 0: copy engines carry it
};

// GPUs, all alike. Where a machine has them, they are the device of its ranks.
struct Cards {
  std::string name;
  int capability = 0;  // compute capability: 86 for 8.6
  int count = 1;
  uint64_t memory_bytes = 0, free_bytes = 0;
  uint64_t driver_bytes = 0;  // that a process's context and libraries take of a card
  Bus bus, shared_bus;        // of a card alone, and of each while all of the host are at it
  CardLink copies, nccl;      // of ranks of one process, by copies where they reach each other, and of several
  // What carries collectives: of ranks of one process the faster.
  bool by_copies() const { return copies.rate >= nccl.rate; }
  const CardLink& link(bool several_processes) const { return several_processes || !by_copies() ? nccl : copies; }
  double node_link = 0;     // bytes a second from cards of other nodes: the makers' figure, which nobody measures
  double node_latency = 0;  // seconds that a collective takes for each further node: the makers' figure
  Rates rates;
  std::string condition{};  // right after they were measured, for readers: "driver 580.82, 61 C, 1755 MHz, ..."
};

struct Machine {
  std::string processor;
  int cores = 1;
  uint64_t memory_bytes = 0, free_bytes = 0;
  std::optional<uint64_t> group_limit_bytes;  // the least limit of the control groups around the process
  struct Disk {
    std::string directory;
    bool direct = false;         // direct I/O is granted there
    double read = 0, write = 0;  // bytes a second, one thread
    uint64_t free_bytes = 0;
  } disk;
  double link = 0;                     // bytes a second that a rank on the CPU takes from others, all of them at it
  std::vector<int64_t> product_sizes;  // rise
  std::vector<TeamRates> teams;        // by threads, which rise; at least one
  std::optional<Cards> cards;
};

// Rates that order arrangements on a machine nobody has measured.
Machine rough_machine();

// A machine by the name of its cards: "H100", "8xRTX4090". Memory and rates are the makers', scaled by what an H200
// reached of its own where it was measured; host and disk are rough. Nothing for a name that is not known.
std::optional<Machine> builtin_machine(std::string_view name);
// Cards by the name that their driver gives, with rates of a machine by name: for a strange one, of the slowest that is
// known of their compute capability (86 for 8.6), or of its first digits, or of all.
Cards rough_cards(const std::string& name, int capability, int count);
// Whether a machine by name has cards that their driver calls so.
bool is_known_card(std::string_view name);
// "RTX4090, A100-40GB, ..."
std::string builtin_machine_names();

// Says on which nodes the ranks are: rank r is on node r / ranks_per_node. By default all are on one.
class Nodes {
 public:
  Nodes() = default;
  Nodes(const Topology& ranks, int ranks_per_node, bool several_processes = false);

  // The ranks that take part in a collective, as the rank sees them that has the most of them on other nodes.
  struct Group {
    int nodes = 1;         // that they are on
    int own_node = 1;      // ranks on the rank's own node
    double remote = 0;     // share of what the rank takes that comes from other nodes
    bool in_order = true;  // these are all ranks, by their numbers
  };
  const Group& group(Ranks who) const { return groups_[static_cast<size_t>(who)]; }
  // Returns the bus of a rank's card: the rate to it falls with a second rank of its node and no further, the rate back
  // evenly with each up to the fourth.
  Bus bus(const Cards& cards) const;
  const CardLink& link(const Cards& cards) const {
    return cards.link(several_processes_ || group(Ranks::Everyone).nodes > 1);
  }

 private:
  bool several_processes_ = false;
  std::array<Group, 4> groups_;  // by Ranks
};

// Seconds of an op on a card, if the machine has any, else on so many threads: an overhead, and what its operations or
// its bytes take at the machine's rates. Between two measured teams rates grow evenly, beyond them they stay.
// `buffers`: of the op's program set. Between cards of several nodes a collective takes what its slower link does: what
// all ranks gather in the order of their numbers goes round in rings, so that a node takes it once, by all of its
// cards; of anything else every card takes its own from everybody. Ranks on the CPU have one link. `facts` say what
// kernels run; without them, what can be made of other ops is.
double seconds(const Op& op, const std::vector<Buffer>& buffers, const Machine& machine, int threads,
               const Nodes& nodes = {}, const OpFacts* facts = nullptr);

// JSON, and back: UserError, with `source` (the file's name), for anything that write_machine() would not have written
// but white space, the order of keys, and other numbers.
std::string write_machine(const Machine& machine);
Machine parse_machine(std::string_view json, const std::string& source);
// Of a file; UserError if there is none.
Machine read_machine(const std::filesystem::path& path);

}  // namespace snug
