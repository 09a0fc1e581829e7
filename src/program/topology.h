// Says how ranks share a model. Ranks are numbered replica by replica: rank = replica * shards + shard.
//
// A flat run of elements that belongs to a group of parameters is cut into `ranks` equal parts. Shard s is the run of
// parts [s * replicas, (s + 1) * replicas), and part s * replicas + k is owned by the rank of shard s in replica k: so
// the owners of a shard's parts are exactly the ranks that hold the shard, and gathering among them gives the shard.
#pragma once

#include "program/ops.h"

namespace snug {

struct Topology {
  int ranks = 1, replicas = 1;  // replicas divides ranks
  int rank = 0;                 // the rank that asks

  int shards() const { return ranks / replicas; }
  int shard() const { return rank % shards(); }
  int replica() const { return rank / shards(); }
  int part() const { return shard() * replicas + replica(); }
  // Returns the topology as another rank sees it.
  Topology seen_by(int other) const { return {ranks, replicas, other}; }

  // Returns how many ranks take part in a collective.
  int count(Ranks scope) const { return scope == Ranks::Replica ? shards() : scope == Ranks::Peers ? replicas : ranks; }
  // Returns this rank's place among the ranks that take part.
  int place(Ranks scope) const {
    switch (scope) {
      case Ranks::Parts:
        return part();
      case Ranks::Everyone:
        return rank;
      case Ranks::Replica:
        return shard();
      case Ranks::Peers:
        return replica();
    }
    return 0;
  }
  // Returns the rank at a place among those that take part.
  int rank_at(Ranks scope, int at) const {
    switch (scope) {
      case Ranks::Parts:
        return at % replicas * shards() + at / replicas;
      case Ranks::Everyone:
        return at;
      case Ranks::Replica:
        return replica() * shards() + at;
      case Ranks::Peers:
        return at * shards() + shard();
    }
    return 0;
  }
};

}  // namespace snug
