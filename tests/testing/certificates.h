// Folders with certificates as `--fleet-tls` takes them, of authorities that a test makes.
//   const TestAuthority authority;
//   authority.Write(folder, {.role = "decode"});
// Thread safety: none.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/certs/authority.h"
#include "common/base/check.h"

namespace tandem::testing {

struct TestCertificate {
  std::string role;  // empty: no URI
  std::string fleet = "test";
  std::vector<std::string> names = {"localhost", "127.0.0.1"};
  absl::Duration begin = -absl::Hours(1), end = absl::Hours(24);  // from now
  std::string trusted;  // ca.crt; empty: the authority's own certificate
};

// Puts the text in place in one step.
inline void ReplaceFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test authority")
      : authority_(Make(name)), certificate_(authority_.pem().certificate) {}

  const std::string& certificate() const { return certificate_; }

  cli::CertificateAndKey Issue(const TestCertificate& what) const {
    cli::CertificateSubject subject;
    subject.common_name = "test";
    if (!what.role.empty())
      subject.uris = {absl::StrCat("spiffe://", what.fleet, "/tandem/", what.role)};
    subject.names = what.names;
    subject.begin = absl::Now() + what.begin;
    subject.end = absl::Now() + what.end;
    auto issued = authority_.Issue(subject);
    TANDEM_CHECK(issued.ok(), issued.status().ToString());
    return *std::move(issued);
  }

  // Makes the folder, or replaces what it holds; returns its path.
  std::string Write(const std::filesystem::path& folder, const TestCertificate& what) const {
    std::filesystem::create_directories(folder);
    const cli::CertificateAndKey issued = Issue(what);
    ReplaceFile(folder / "ca.crt", what.trusted.empty() ? certificate_ : what.trusted);
    ReplaceFile(folder / "tls.key", issued.key);
    ReplaceFile(folder / "tls.crt", issued.certificate);
    return folder.string();
  }

 private:
  static cli::Authority Make(const std::string& name) {
    auto made =
        cli::Authority::Create(name, absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24));
    TANDEM_CHECK(made.ok(), made.status().ToString());
    return *std::move(made);
  }

  const cli::Authority authority_;
  const std::string certificate_;
};

}  // namespace tandem::testing
