#include "common/lending/link_handshake.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/keyed_tag.h"
#include "common/base/status_macros.h"
#include "common/lending/link_address.h"
#include "common/runtime/random.h"

namespace tandem::lending {
namespace {

// The format's name and version: the first bytes of a hello.
constexpr absl::string_view kMagic = "tandem lending 2";
constexpr size_t kHandshakeNonceBytes = 32;
constexpr char kCreditorPurpose[] = "lending link, creditor";
constexpr char kDebtorPurpose[] = "lending link, debtor";
constexpr char kToCreditorPurpose[] = "lending link, messages to the creditor";
constexpr char kToDebtorPurpose[] = "lending link, messages to the debtor";

// Lengths are in front, so that no two lists of fields have the same bytes.
void AppendText(std::string& bytes, absl::string_view text) {
  const auto size = static_cast<uint16_t>(text.size());
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes.append(text.data(), text.size());
}

void AppendEnd(std::string& bytes, const DebtorId& end) {
  AppendText(bytes, end.node.value());
  const uint64_t incarnation = end.incarnation.value();
  bytes.append(reinterpret_cast<const char*>(&incarnation), sizeof incarnation);
}

bool TakeBytes(absl::string_view& bytes, size_t count, absl::string_view* taken) {
  if (bytes.size() < count) return false;
  *taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return true;
}

bool TakeText(absl::string_view& bytes, std::string* text) {
  absl::string_view taken;
  uint16_t size = 0;
  if (!TakeBytes(bytes, sizeof size, &taken)) return false;
  std::memcpy(&size, taken.data(), sizeof size);
  if (!TakeBytes(bytes, size, &taken)) return false;
  *text = std::string(taken);
  return true;
}

bool TakeEnd(absl::string_view& bytes, DebtorId* end) {
  std::string node;
  absl::string_view taken;
  uint64_t incarnation = 0;
  if (!TakeText(bytes, &node) || node.size() > kNodeIdBytesMax ||
      !TakeBytes(bytes, sizeof incarnation, &taken)) {
    return false;
  }
  std::memcpy(&incarnation, taken.data(), sizeof incarnation);
  *end = {.node = NodeId(node), .incarnation = Incarnation(incarnation)};
  return true;
}

absl::StatusOr<LinkEnds> ParseHello(absl::string_view hello) {
  LinkEnds ends;
  absl::string_view nonce;
  if (!absl::ConsumePrefix(&hello, kMagic) || !TakeBytes(hello, kHandshakeNonceBytes, &nonce) ||
      !TakeEnd(hello, &ends.debtor) || !TakeEnd(hello, &ends.creditor) ||
      !TakeText(hello, &ends.address) || !hello.empty()) {
    return absl::InvalidArgumentError("the first message is not a lending link's hello");
  }
  return ends;
}

LinkKeys DeriveKeys(const std::string& secret, const std::string& transcript) {
  return {.debtor_to_creditor = KeyedTag(secret, kToCreditorPurpose, transcript),
          .creditor_to_debtor = KeyedTag(secret, kToDebtorPurpose, transcript)};
}

std::string Describe(const DebtorId& end) {
  return absl::StrCat(end.node.value(), " (incarnation ", end.incarnation.value(), ")");
}

}  // namespace

absl::StatusOr<DebtorHandshake> DebtorHandshake::Create(const std::string& secret,
                                                        const LinkEnds& ends) {
  if (ends.debtor.node.value().size() > kNodeIdBytesMax ||
      ends.creditor.node.value().size() > kNodeIdBytesMax ||
      ends.address.size() > kLinkAddressBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ids of ", ends.debtor.node.value().size(), " and ",
                     ends.creditor.node.value().size(), " bytes and an address of ",
                     ends.address.size(), ", expected at most ", kNodeIdBytesMax, " each"));
  }
  std::string hello = absl::StrCat(kMagic, SecretBytes(kHandshakeNonceBytes));
  AppendEnd(hello, ends.debtor);
  AppendEnd(hello, ends.creditor);
  AppendText(hello, ends.address);
  return DebtorHandshake(secret, std::move(hello));
}

absl::StatusOr<std::string> DebtorHandshake::Prove(absl::string_view challenge) {
  if (challenge.size() != kHandshakeNonceBytes + kKeyedTagBytes) {
    return absl::PermissionDeniedError(absl::StrCat("a challenge of ", challenge.size(),
                                                    " bytes, expected ",
                                                    kHandshakeNonceBytes + kKeyedTagBytes));
  }
  const std::string signed_bytes = absl::StrCat(hello_, challenge.substr(0, kHandshakeNonceBytes));
  if (!IsKeyedTag(challenge.substr(kHandshakeNonceBytes), secret_, kCreditorPurpose,
                  signed_bytes)) {
    return absl::PermissionDeniedError("the creditor holds another secret");
  }
  transcript_ = absl::StrCat(hello_, challenge);
  return KeyedTag(secret_, kDebtorPurpose, transcript_);
}

LinkKeys DebtorHandshake::keys() const { return DeriveKeys(secret_, transcript_); }

absl::StatusOr<std::string> CreditorHandshake::Challenge(absl::string_view hello) {
  ASSIGN_OR_RETURN(const LinkEnds ends, ParseHello(hello));
  if (!(ends.creditor == self_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the debtor looks for ", Describe(ends.creditor), ", this is ", Describe(self_)));
  }
  if (ends.address != address_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the debtor dialled ", ends.address, ", this is ", address_));
  }
  debtor_ = ends.debtor;
  std::string challenge = SecretBytes(kHandshakeNonceBytes);
  challenge += KeyedTag(secret_, kCreditorPurpose, absl::StrCat(hello, challenge));
  transcript_ = absl::StrCat(hello, challenge);
  return challenge;
}

absl::Status CreditorHandshake::Check(absl::string_view proof) const {
  if (IsKeyedTag(proof, secret_, kDebtorPurpose, transcript_)) return absl::OkStatus();
  return absl::PermissionDeniedError("the debtor holds another secret");
}

LinkKeys CreditorHandshake::keys() const { return DeriveKeys(secret_, transcript_); }

}  // namespace tandem::lending
