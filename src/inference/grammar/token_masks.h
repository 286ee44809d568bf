// The tokens that may come next in answers of a grammar, and the grammars of a server.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "inference/grammar/automaton.h"
#include "inference/grammar/grammar.h"
#include "inference/grammar/vocabulary.h"

namespace tdock::inference {

// Bit t % 64 of word t / 64 says whether token t may come.
using TokenMask = std::vector<uint64_t>;

// Thread-safe. The states of the grammar's automaton and the masks are kept, since answers are in the same few places
// most of the time. Where they take more than `max_bytes`, they begin anew.
//
// Tokens that stay within the innermost object, list or text are the same whatever is around it. So they are found once
// for each state, together with the parts of the vocabulary that go on outside, and only these are looked at again in
// other surroundings.
class TokenMasks {
  struct Tables;

 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  // A place between two tokens of an answer. Cheap to copy. Not thread-safe.
  class Place {
   public:
    // The answer is whole as it is; nothing may follow.
    bool may_end() const { return may_end_; }
    bool complete() const { return complete_; }

   private:
    friend class TokenMasks;

    std::shared_ptr<Tables> tables_;  // that position_ is of
    Position position_;
    bool may_end_ = false, complete_ = false;
    bool failed_ = false;
  };

  TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary,
             size_t max_bytes = kMaxBytes);

  Place Start() TDOCK_EXCLUDES(mu_);
  // Where an answer may end, end tokens are allowed. No token at all: the grammar is so ambiguous that its states take
  // too long to find, or the vocabulary has no token for what must come.
  std::shared_ptr<const TokenMask> Allowed(Place& place) TDOCK_EXCLUDES(mu_);
  // Goes over a token, which must be one that is allowed.
  void Accept(Place& place, int32_t token) TDOCK_EXCLUDES(mu_);

  size_t bytes() const { return bytes_; }  // of memory, about

 private:
  // The children of a node of the vocabulary, which go on when the frame has closed.
  struct Segment {
    uint32_t node;
    uint32_t ending;
  };
  struct FrameMask {
    std::shared_ptr<const TokenMask> mask;  // of what stays within the frame
    std::vector<Segment> segments;
    int min_room = 0;  // for objects and lists in one another; with less, the mask is another one
  };
  struct Tables {
    explicit Tables(std::shared_ptr<const Network> network) : automaton(std::move(network)) {}
    size_t bytes() const { return automaton.bytes() + mask_bytes; }

    Automaton automaton;
    absl::flat_hash_map<uint64_t, std::shared_ptr<const FrameMask>> frame_masks;  // by state, count and room
    absl::flat_hash_map<std::string, std::shared_ptr<const TokenMask>> masks;     // by all frames
    size_t mask_bytes = 0;
  };
  class Walker;

  void Renew(Place& place) TDOCK_REQUIRES(mu_);
  void Update(Place& place) TDOCK_REQUIRES(mu_);
  uint32_t CountsLeft(const Automaton& automaton, Frame frame) const;
  std::shared_ptr<const TokenMask> MaskAt(Tables& tables, Position& position) const;
  std::shared_ptr<const FrameMask> FrameMaskAt(Tables& tables, const Position& position) const;
  std::shared_ptr<const FrameMask> MakeFrameMask(Automaton& automaton, Frame frame, int room) const;

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t max_bytes_;
  const std::shared_ptr<const TokenMask> none_;

  Mutex mu_;  // also of what tables_ and the tables of places point to
  std::shared_ptr<Tables> tables_ TDOCK_GUARDED_BY(mu_);
  std::atomic<size_t> bytes_ = 0;
};

// Keeps the grammars that were asked for last, with their masks. Thread-safe.
class Grammars {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 20, kMaxGrammars = 256;

  explicit Grammars(std::shared_ptr<const Vocabulary> vocabulary, size_t max_bytes = kMaxBytes)
      : vocabulary_(std::move(vocabulary)), max_bytes_(max_bytes) {}

  // As CompileGrammar(). In the literal text of calls, special tokens of the vocabulary are sampled as such.
  absl::StatusOr<std::shared_ptr<TokenMasks>> For(GrammarSpec spec) TDOCK_EXCLUDES(mu_);

 private:
  using Kept = std::list<std::pair<std::string, std::shared_ptr<TokenMasks>>>;

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t max_bytes_;

  Mutex mu_;
  Kept kept_ TDOCK_GUARDED_BY(mu_);  // by what they were compiled from; the last one asked for is the first
  absl::flat_hash_map<std::string, Kept::iterator> places_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::inference
