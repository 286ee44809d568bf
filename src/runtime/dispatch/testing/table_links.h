// Workers without threads, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/worker_group.h"

namespace tdock::runtime {

// Runs each call on the thread that makes it.
class TableLink : public WorkerLink {
 public:
  TableLink(size_t rank, MethodTable table) : rank_(rank), table_(std::move(table)) {}
  std::string Describe() const override { return absl::StrCat("rank ", rank_); }
  void Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
              std::function<void(absl::StatusOr<Value>)> done) override {
    done(table_.Call(method, std::move(arguments), deadline));
  }

 private:
  const size_t rank_;
  const MethodTable table_;
};

// Returns links by rank.
inline std::vector<std::shared_ptr<WorkerLink>> LinksTo(std::vector<MethodTable> tables) {
  std::vector<std::shared_ptr<WorkerLink>> links;
  for (MethodTable& table : tables) links.push_back(std::make_shared<TableLink>(links.size(), std::move(table)));
  return links;
}

}  // namespace tdock::runtime
