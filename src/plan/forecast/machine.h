// Describes a machine as data: `snug doctor` measures it, and a plan's ops are priced by it.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "program/facts.h"
#include "program/topology.h"

namespace snug {

// Holds a rate by size. Between two sizes the time grows linearly, as if of a fixed cost and a rate beyond it; beyond
// the ends the rate stays.
struct RateCurve {
  std::vector<double> sizes, rates;  // sizes rise; at least one
  double at(double size) const;
};

// Holds operations a second of products [m, k] x [k, n], for every m, n and k of Machine::product_sizes; between those,
// seconds grow linearly along every side. Rates of products of fp8 codes stand under U8.
struct ProductRates {
  DType dtype = DType::BF16;
  bool transpose_a = false, transpose_b = false, addend = false;
  std::vector<double> flops;  // by m, then n, then k
};

// Holds rates of attention by the length of the documents, with operations as work() counts them.
struct AttentionRates {
  DType dtype = DType::BF16;
  bool backward = false;
  int64_t head_dim = 64;
  RateCurve flops;
};

// Holds bytes a second of a kind of op without products, by the bytes that it reads and writes.
struct KindRates {
  std::string kind;  // as kind() names it
  DType dtype = DType::BF16;
  RateCurve bytes;
};

// Holds the rates of a team of threads, or of a card. `flops`, `fp8_flops` and `copy` serve for what the tables lack.
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

// Holds bytes a second between a card and the host's arena, while both directions are in use.
struct Bus {
  double to_device = 0, from_device = 0;
};

// Describes what connects ranks on cards of one host.
struct CardLink {
  uint64_t bytes = 0;  // taken of each card
  double rate = 0;     // bytes a second that a card takes from the others of its host, while all of them do
  int blocks = 0;      // of threads, the most that one lane occupies on a card; 0: copy engines move the bytes
};

// Describes GPUs, all alike. Where a machine has them, they are the device of its ranks.
struct Cards {
  std::string name;
  int capability = 0;  // compute capability: 86 for 8.6
  int count = 1;
  uint64_t memory_bytes = 0, free_bytes = 0;
  uint64_t driver_bytes = 0;  // that a process's context and libraries take of a card
  Bus bus, shared_bus;        // of a card alone, and of each while all cards of the host use theirs
  CardLink copies, nccl;      // for ranks of one process, by copies where cards reach each other; for ranks of several
  // Returns whether collectives of ranks of one process go by copies, as they do where those are no slower than NCCL.
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
  double link = 0;                     // bytes a second that a rank on the CPU takes from others, while all of them do
  std::vector<int64_t> product_sizes;  // ascending
  std::vector<TeamRates> teams;        // by threads, ascending; at least one
  std::optional<Cards> cards;
};

// Returns rates that order arrangements on a machine that nobody has measured.
Machine rough_machine();

// Returns a machine by the name of its cards, such as "H100" or "8xRTX4090". Memory and rates are the makers', scaled
// by the share of its own that an H200 reached where it was measured; host and disk are rough. Nothing for an unknown
// name.
std::optional<Machine> builtin_machine(std::string_view name);
// Returns cards by the name that their driver gives, with the rates of a machine known by name. An unknown card gets
// those of the slowest known card of its compute capability (86 for 8.6), or of its first digits, or of all.
Cards rough_cards(const std::string& name, int capability, int count);
// Returns whether a machine known by name has the cards to which their driver gives this name.
bool is_known_card(std::string_view name);
// Returns the known names: "RTX4090, A100-40GB, ..."
std::string builtin_machine_names();

// Says on which nodes the ranks are: rank r is on node r / ranks_per_node. By default all are on one.
class Nodes {
 public:
  Nodes() = default;
  Nodes(const Topology& ranks, int ranks_per_node, bool several_processes = false);

  // Describes the ranks that take part in a collective, as seen by the rank that has the most of them on other nodes.
  struct Group {
    int nodes = 1;         // on which these ranks are
    int own_node = 1;      // ranks on the rank's own node
    double remote = 0;     // share of what the rank takes that comes from other nodes
    bool in_order = true;  // these are all ranks, by their numbers
  };
  const Group& group(Ranks scope) const { return groups_[static_cast<size_t>(scope)]; }
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

// Returns the seconds of an op on a card, if the machine has any, else on `threads` threads: an overhead, and what its
// operations or its bytes take at the machine's rates. Between two measured teams rates grow linearly, beyond them they
// stay. `buffers` are the op's program set's. Between cards of several nodes a collective takes as long as its slower
// link: what all ranks gather in the order of their numbers goes round in NCCL's rings, which carry all of it but a
// part into every node, by all of its cards; in any other collective every card takes its own bytes from every other.
// Ranks on the CPU have one link. `facts` say which kernels run; without them, every composite op runs as the ops of
// which it is made.
double seconds(const Op& op, const std::vector<Buffer>& buffers, const Machine& machine, int threads,
               const Nodes& nodes = {}, const OpFacts* facts = nullptr);

// Write a machine as JSON and read it. Reading throws UserError, with `source` (the file's name), for anything that
// write_machine() would not have written except white space, the order of keys, and other numbers.
std::string write_machine(const Machine& machine);
Machine parse_machine(std::string_view json, const std::string& source);
// Reads a machine from a file. Throws UserError if there is none.
Machine read_machine(const std::filesystem::path& path);

}  // namespace snug
