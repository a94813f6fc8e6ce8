from __future__ import annotations

from cubicle.core.chat import Chat
from cubicle.fairness.byte_budget import UNCOUNTED, ByteBudget

A, B, OTHER = Chat("a", "acme"), Chat("b", "acme"), Chat("a", "rival")


def test_a_chat_and_a_tenant_hold_so_much_and_no_more() -> None:
    budget = ByteBudget(of_chat=1000, of_tenant=1500)
    with budget.account(A) as one, budget.account(A) as two, budget.account(B) as b, budget.account(OTHER) as other:
        assert one.hold(UNCOUNTED + 600)
        assert two.hold(UNCOUNTED + 400)
        assert not two.hold(UNCOUNTED + 401)
        assert two.hold(UNCOUNTED + 400)
        assert b.hold(UNCOUNTED + 500)
        assert not b.hold(UNCOUNTED + 501)
        assert other.hold(UNCOUNTED + 1000)
        assert one.hold(UNCOUNTED)
        assert not b.hold(UNCOUNTED + 1001)
    assert not budget._chats
    assert not budget._tenants


def test_small_messages_are_never_in_the_way() -> None:
    """Whoever fills the budget of a chat shuts out nobody who holds little."""
    budget = ByteBudget(of_chat=1000, of_tenant=1000)
    with budget.account(A) as full, budget.account(A) as small:
        assert not full.hold(UNCOUNTED + 2000)
        assert small.hold(UNCOUNTED)
        assert small.hold(0)


def test_an_account_that_is_closed_holds_nothing() -> None:
    budget = ByteBudget(of_chat=1000, of_tenant=1000)
    with budget.account(A) as account:
        account.hold(UNCOUNTED + 10)
    assert account.hold(UNCOUNTED + 5000)
    assert not budget._chats
