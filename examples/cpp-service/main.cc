#include <iostream>

#include "tdock/remote_dock.h"

int main(int argc, char** argv) {
  const auto dock = tdock::ConnectDock({.address = argc > 1 ? argv[1] : "127.0.0.1:7077"}).value();
  dock->CreatePartition({.name = "demo", .growing = true}).IgnoreError();
  dock->RegisterConsumer("demo", {.name = "rollout", .reads = {"prompt"}}).IgnoreError();
  tdock::PutRequest put = {.partition = "demo"};
  put.batch.Add("prompt", tdock::Column::FromStrings(std::vector<std::string>{"37+85=", "12+30="})).IgnoreError();
  dock->Put(put).value();
  const auto taken = dock->Take({.partition = "demo", .consumer = "rollout", .min = 2, .max = 2}).value();
  for (size_t row = 0; row < taken.rows.size(); ++row) std::cout << taken.rows.Text(row, "prompt").value() << "\n";
}
