// How ranks share a model. Ranks are numbered replica by replica: rank = replica * shards + shard.
//
// A flat run of elements that belongs to a group of parameters is cut into `ranks` equal parts. Shard s is the run of
// parts [s * replicas, (s + 1) * replicas), and part s * replicas + k is owned by the rank of shard s in replica k: so
// the owners of a shard's parts are exactly the ranks that hold the shard, and gathering among them gives the shard.
#pragma once

#include "program/ops.h"

namespace snug {

struct Topology {
  int ranks = 1, replicas = 1;  // replicas divides ranks
  int rank = 0;                 // of who asks

  int shards() const { return ranks / replicas; }
  int shard() const { return rank % shards(); }
  int replica() const { return rank / shards(); }
  // The part that a rank owns.
  int part_of(int r) const { return r % shards() * replicas + r / shards(); }
  int part() const { return part_of(rank); }

  // How many take part in a joint op, and the place of this rank's part among theirs: for All by part, for Replica by
  // shard, for Peers by replica.
  int count(Ranks who) const { return who == Ranks::All ? ranks : who == Ranks::Replica ? shards() : replicas; }
  int place(Ranks who) const { return who == Ranks::All ? part() : who == Ranks::Replica ? shard() : replica(); }
  // The rank whose part has a place.
  int rank_at(Ranks who, int at) const {
    if (who == Ranks::All) return at % replicas * shards() + at / replicas;
    return who == Ranks::Replica ? replica() * shards() + at : at * shards() + shard();
  }
};

}  // namespace snug
