// A dock inside a program: one stage puts prompts, another takes those that are ready for it.
#include <iostream>

#include "tdock/local_dock.h"

namespace {

absl::Status Run() {
  const std::unique_ptr<tdock::Dock> dock = tdock::MakeLocalDock();
  absl::Status status = dock->CreatePartition({.name = "train", .growing = true});
  if (status.ok()) status = dock->RegisterConsumer("train", {.name = "rollout", .reads = {"prompt"}});
  tdock::PutRequest put = {.partition = "train"};
  const std::string prompts[] = {"37+85=", "12+30="};
  if (status.ok()) status = put.batch.Add("prompt", tdock::Column::FromStrings(prompts));
  if (status.ok()) status = dock->Put(put).status();
  if (!status.ok()) return status;
  const absl::StatusOr<tdock::Taken> taken =
      dock->Take({.partition = "train", .consumer = "rollout", .min = 2, .max = 2});
  if (!taken.ok()) return taken.status();
  for (size_t row = 0; row < taken->rows.size(); ++row) std::cout << *taken->rows.Text(row, "prompt") << "\n";
  return dock->Complete({.partition = "train", .lease = taken->lease});
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
