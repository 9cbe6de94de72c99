// Goal: a secret is what a file holds without the white space around it; a folder or an empty file
// is an error that names the flag and the path.
#include "common/config/secret_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace tandem::config {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(SecretFile, HoldsASecret) {
  const testing::TestFolder folder("secret-file");
  const std::string path = folder / "secret";
  const auto expect_error = [](const std::string& of, absl::StatusCode code,
                               const std::string& message) {
    EXPECT_THAT(ReadSecretFile("fleet-secret-file", of).status(),
                StatusIs(code, HasSubstr(message)));
  };
  expect_error(folder.path(), absl::StatusCode::kNotFound,
               "fleet-secret-file: cannot read " + folder.path());
  expect_error(path, absl::StatusCode::kNotFound, "fleet-secret-file: cannot read " + path);
  std::ofstream(path) << " \n";
  expect_error(path, absl::StatusCode::kInvalidArgument,
               "fleet-secret-file: " + path + " is empty");
  std::ofstream(path) << " secret words\n";
  ASSERT_OK_AND_ASSIGN(const std::string secret, ReadSecretFile("fleet-secret-file", path));
  EXPECT_EQ(secret, "secret words");
  ASSERT_OK_AND_ASSIGN(const std::string none, ReadSecretFile("fleet-secret-file", ""));
  EXPECT_EQ(none, "");
}

}  // namespace
}  // namespace tandem::config
