// What a loan will cost its debtor over the link to a creditor: one number, in microseconds, by
// which the broker compares creditors (router/core/loan_broker.h).
//
//   price = bytes to be sent / rate  +  tokens * layers * round trip
//
// A loan of n tokens makes room for n tokens at the debtor, and each of these asks the creditor a
// question in each layer. Hence the second term: it grows with the loan, as the first one does, and
// is most of the price. It is an upper bound: a debtor computes its own part meanwhile.
//
// Rate and round trip are what the debtor has measured (Node::creditor_links). What is missing of a
// pair is taken from the fleet's usual link, that of two nodes of one host or that of two hosts. A
// creditor of the debtor's host is taken to cost half of what one of another host does, or less: so
// of creditors without a measurement those of the host come first. A price above the usual one
// fades while nothing is measured, as all prices do (docs/adr/0103-unused-prices-fade.md).
//
// Thread safety: none; the core's strand. It refers to the fleet and the debtor, and is valid until
// either changes.
#pragma once

#include <cstdint>

#include "router/fleet/fleet.h"

namespace tandem::router {

class LoanPrice {
 public:
  // Of a loan of `tokens`. REQUIRES: tokens > 0.
  LoanPrice(const Fleet& fleet, const Node& debtor, int64_t tokens);

  // Finite, at least 0. `tokens_sent`: those that the debtor has to send, at most all.
  double Us(const Node& creditor, int64_t tokens_sent) const;

 private:
  // What a token of the loan usually costs.
  struct Usual {
    double sent_us = 0;   // to be sent
    double asked_us = 0;  // to be asked about
  };

  const Fleet& fleet_;
  const Node& debtor_;
  const int64_t tokens_;
  const Usual other_host_, same_host_;
};

}  // namespace tandem::router
