// The columns of an adapter by their names, and those that a phase reads. Internal to this module.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>

#include "absl/strings/string_view.h"
#include "data/adapter.h"

namespace tdock::data {

struct AdapterField {
  absl::string_view name;
  std::string Adapter::*column;
};
inline constexpr AdapterField kAdapterFields[] = {
    {"prompt", &Adapter::prompt},
    {"input", &Adapter::input},
    {"chosen", &Adapter::chosen},
    {"rejected", &Adapter::rejected},
    {"conversation", &Adapter::conversation},
    {"tools", &Adapter::tools},
    {"documents", &Adapter::documents},
    {"label", &Adapter::label},
    {"truth", &Adapter::truth},
    {"source", &Adapter::source},
    {"text", &Adapter::text},
};

// Nullptr where there is none.
inline const AdapterField* FieldNamed(absl::string_view name) {
  const auto found = std::find_if(std::begin(kAdapterFields), std::end(kAdapterFields),
                                  [&](const AdapterField& f) { return f.name == name; });
  return found == std::end(kAdapterFields) ? nullptr : found;
}

// The fields that a phase reads of this adapter; the columns of Adapter::keep come after them. A conversation says it
// all by itself.
class FieldList {
 public:
  FieldList(const Adapter& adapter, Phase phase) {
    const bool has_conversation = !adapter.conversation.empty();
    switch (phase) {
      case Phase::kSft:
        if (has_conversation) {
          Add("conversation");
        } else if (adapter.prompt.empty() && adapter.chosen.empty() && !adapter.text.empty()) {
          Add("text");
        } else {
          AddPrompt(adapter);
          Add("chosen");
        }
        break;
      case Phase::kReward:
        AddPrompt(adapter);
        Add("chosen");
        Add("rejected");
        break;
      case Phase::kPrompt:
        if (adapter.prompt.empty() && has_conversation) {
          Add("conversation");
        } else if (adapter.prompt_is_in_answers()) {
          Add("chosen");
        } else {
          AddPrompt(adapter);
        }
        break;
      case Phase::kUnsupervised:
        Add("text");
        break;
    }
    if (phase != Phase::kUnsupervised) {
      if (!adapter.tools.empty()) Add("tools");
      if (!adapter.documents.empty()) Add("documents");
    }
    if (!adapter.label.empty()) Add("label");
    if (phase != Phase::kSft && phase != Phase::kPrompt) return;
    if (!adapter.truth.empty()) Add("truth");
    if (!adapter.source.empty()) Add("source");
    kept_ = adapter.keep.size();
  }

  // How many columns are kept.
  size_t kept() const { return kept_; }

  size_t size() const { return size_; }
  const AdapterField& operator[](size_t i) const { return *fields_[i]; }

 private:
  void Add(absl::string_view name) { fields_[size_++] = FieldNamed(name); }
  void AddPrompt(const Adapter& adapter) {
    if (adapter.prompt_is_in_answers()) return;
    Add("prompt");
    if (!adapter.input.empty()) Add("input");
  }

  std::array<const AdapterField*, std::size(kAdapterFields)> fields_;
  size_t size_ = 0;
  size_t kept_ = 0;
};

}  // namespace tdock::data
