"""Audits: what an attacker who knows everything but one client can show about a mechanism, with confidence.

An accountant says how much is lost at most; an audit says how much is lost at least. A lower bound above the claimed
epsilon proves that the claim or the code is wrong. A lower bound below it proves nothing: attacks only get better.

bounds.py      from scores with and without a canary to bounds on epsilon
one_run.py     the same from one training with many canaries, without assuming that they do not disturb each other
mechanism.py   many runs of clip, noise and sum with and without a canary
broken.py      mechanisms that do not do what they claim: an audit must find them
isfa.py        the weighted mean of PrivFedTalk as printed, whose naive central claim does not hold
canaries.py    directions that canary clients push, and what the sums of a real training say about them
finding.py     bounds beside a claim: consistent, or a violation
"""
