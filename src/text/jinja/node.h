// What values hold that does not fit into them. Internal to this module.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/meter.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// Shared by the values that point to it, and charged to the meter of the render that made it, if one did.
struct Node {
  explicit Node(Meter* charged) : meter(charged) {}
  virtual ~Node() {
    if (meter != nullptr) meter->LetGo(charged_bytes);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  void Charge(size_t bytes) {
    charged_bytes = bytes;
    if (meter != nullptr) meter->Hold(bytes);
  }

  std::atomic<uint32_t> references = 1;
  Meter* const meter;
  size_t charged_bytes = 0;
};

struct TextNode final : Node {
  TextNode(Text made, Meter* charged) : Node(charged), text(std::move(made)) {
    Charge(sizeof(TextNode) + text.memory_bytes());
  }
  const Text text;
  bool is_markup = false;
};

struct UndefinedNode final : Node {
  UndefinedNode(std::string made, Meter* charged) : Node(charged), message(std::move(made)) {
    Charge(sizeof(UndefinedNode) + message.capacity());
  }
  const std::string message;
};

struct ItemsNode final : Node {
  ItemsNode(Value::Items made, int levels, Meter* charged) : Node(charged), items(std::move(made)), nesting(levels) {
    Charge(sizeof(ItemsNode) + items.capacity() * sizeof(Value));
  }
  const Value::Items items;
  const int nesting;
  bool is_group = false;
};

struct DictNode final : Node {
  DictNode(Value::Pairs made, int32_t of_turn, Meter* charged);
  // The index of the pair; -1: there is none.
  int64_t Find(const Value& key) const;
  int64_t FindString(absl::string_view key) const;

  Value::Pairs pairs;  // in order, each key once
  int nesting = 1;
  const int32_t mark;

 private:
  void Index();
  template <class Matches>
  int64_t Lookup(uint64_t hash, const Matches& matches) const;

  std::vector<uint32_t> index_;  // by hash, open addressing: the number of the pair and one; empty for few pairs
};

// Of strings as keys of dicts.
uint64_t HashOf(absl::string_view text);

}  // namespace tdock::jinja
