// Certificates for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/net/tls.h"

namespace tdock::net {

// A folder with certificates made by the openssl command: two CAs, "ours" and "theirs", and a pair of certificates by
// each, for 127.0.0.1 and ours.example. Removed with this object.
class Certificates {
 public:
  Certificates() {
    std::string name = testing::TempDir() + "certificates.XXXXXX";
    folder_ = mkdtemp(name.data());
    for (const std::string each : {"ours", "theirs"}) {
      Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + each + "-ca -keyout " +
          each + "-ca.key -out " + each + "-ca.pem");
      MakePair(each);
    }
    Run("ec -in ours.key -aes256 -passout pass:secret -out locked.key");
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // A new pair by the CA of this name, in place of the one before.
  void MakePair(const std::string& name) const {
    Run("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + name + ".key -out " +
        name + ".csr");
    std::ofstream(Path(name + ".ext")) << "subjectAltName=IP:127.0.0.1,DNS:" << name << ".example\n";
    Run("x509 -req -days 2 -in " + name + ".csr -CA " + name + "-ca.pem -CAkey " + name + "-ca.key -CAcreateserial " +
        "-extfile " + name + ".ext -out " + name + ".pem");
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  TlsFiles Files(const std::string& pair, const std::string& authority) const {
    return {.certificate = pair.empty() ? "" : Path(pair + ".pem"),
            .key = pair.empty() ? "" : Path(pair + ".key"),
            .ca = authority.empty() ? "" : Path(authority + "-ca.pem")};
  }

 private:
  void Run(const std::string& arguments) const {
    const std::string command = "cd '" + folder_ + "' && openssl " + arguments + " > openssl.log 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }

  std::string folder_;
};

// Those that all tests of a process share.
inline const Certificates& TestCertificates() {
  static const Certificates certificates;
  return certificates;
}

}  // namespace tdock::net
