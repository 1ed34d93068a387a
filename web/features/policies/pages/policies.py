"""The pages of policies: a list, and a form that previews what a policy would do before it is saved.

A preview is a dry run, which is a task. Only values that were previewed can be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import Forbidden, NotFound, ServiceUnavailable
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.policies.policy import Policy, PolicyError
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.features.policies.changes import Effect, ListedPolicy, PolicyChanges
from greenstalk_server.web.features.policies.pages.policy_form import (
    NAME,
    PATTERNS,
    PRIORITY,
    PolicyForm,
    form_of,
    submitted_form,
    version_of,
)
from greenstalk_server.web.features.policies.setting_texts import GROUPS, SETTING_TEXTS, setting_pairs
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.framework.sorting import Head, Heads, Order, order_args, read_order

MAX_SHOWN: Final = 200
"""Maximum number of policies on the page. The filter finds the others."""

MAX_FILTER_LENGTH: Final = 200

PREVIEW_WAIT: Final = 1.0
"""Seconds that a request waits for a preview. After that, the page shows the preview as running."""

PRIORITY_HELP: Final = (
    "If several policies set the same setting, the highest priority wins, then the most specific pattern, then the name"
)

COLUMNS: Final = (
    ("policy", "Policy", "", "name"),
    ("patterns", "Patterns", "Patterns of tube names; * matches any characters", ""),
    ("matched number", "Tubes", "Existing tubes to which the policy applies", "tubes"),
    ("priority number", "Priority", PRIORITY_HELP, "priority"),
    ("settings", "Settings", "", ""),
    ("source", "Source", "", "source"),
)
"""The columns of the list: CSS class, label, explanation, and the order of the column or empty."""

SORTS: Final = tuple(column[3] for column in COLUMNS if column[3])

BY_NAME: Final = Order("name")

CHANGED: Final = "The policy has changed since you opened the form. Compare with its current values, then save again."
EXISTS: Final = "a policy of this name already exists"


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy as the list shows it.

    settings        label and value of each setting.
    matched         number of existing tubes that it applies to.
    problem         the reason why it has no effect, or empty.
    """

    name: str
    patterns: list[str]
    priority: str
    settings: list[tuple[str, str]]
    source: str
    matched: str
    problem: str


class PolicyPages:
    """The pages of the policies of one broker."""

    def __init__(self, broker: Broker, commit: Callable[[], bool], policies: PolicyChanges, tasks: Tasks) -> None:
        """*commit* waits until all changes so far are as durable as an acknowledged command; False on a timeout."""
        self._broker: Broker = broker
        self._commit: Callable[[], bool] = commit
        self._policies: PolicyChanges = policies
        self._tasks: Tasks = tasks

    def init_app(self, app: Flask) -> None:
        """Add the pages and forms to *app*."""
        app.add_url_rule("/policies", "policies", self.index)
        app.add_url_rule("/policy", "policy", self.policy)
        app.add_url_rule("/policy/preview", "policy_preview", self.preview, methods=["POST"])
        app.add_url_rule("/policy/set", "policy_set", self.save, methods=["POST"])
        app.add_url_rule("/policy/remove", "policy_remove", self.remove, methods=["POST"])

    def index(self) -> str:
        """Serve `/policies?q=&sort=&desc=`: the policies whose name or patterns contain `q`. May switch."""
        query = request.args.get("q", "").strip()[:MAX_FILTER_LENGTH]
        known, wanted = self._policies.all(), query.lower()
        found = [one for one in known if wanted in one.name.lower() or wanted in " ".join(_patterns(one)).lower()]
        matched, order = self._policies.count_tubes(), read_order(request.args, SORTS, BY_NAME)
        found.sort(key=lambda one: _rank(one, order.key, matched), reverse=order.is_descending)
        return render_template(
            "policies.html",
            rows=[_row(one, matched.get(one.name, 0)) for one in found[:MAX_SHOWN]],
            summary=_summary(min(len(found), MAX_SHOWN), len(found), len(known), query),
            warnings=self._policies.warnings(),
            query=query,
            heads=_heads(query, order) if found else [],
            order_args=order_args(order, BY_NAME),
            longest_filter=MAX_FILTER_LENGTH,
            has_policies=bool(known),
        )

    def policy(self) -> str | Response:
        """Serve `/policy?name=` or `/policy?task=&version=`: a policy with its form, or a preview. May switch."""
        if request.args.get("task"):
            task = self._tasks.find(request.args)
            effect = task.subject_as(Effect)
            task.wait(PREVIEW_WAIT)
            form = form_of(effect.policy.name, effect.policy.document(), request.args.get("version", ""))
            return self._form_page(form, task=task)
        if request.args.get("name"):
            found = self._policies.get(request.args["name"])
            return self._form_page(form_of(found.name, found.document, version_of(found)), found)
        if not principal().is_admin:
            raise Forbidden("You cannot add policies. Only admins can, and only if the dashboard is not read-only.")
        return self._form_page(PolicyForm("", {PATTERNS: request.args.get("tube", ""), PRIORITY: "0"}))

    @open_to(ADMIN)
    def preview(self) -> Response:
        """Form with a policy: start a dry run and redirect to its page. Switches."""
        form, policy = submitted_form(request.form)
        return self._refused(form) if policy is None else self._preview(form, policy)

    @open_to(ADMIN)
    def save(self) -> Response:
        """Form with a policy, and the `task` of its preview: save the policy.

        Values that differ from the previewed ones are previewed instead. Switches.
        """
        form, policy = submitted_form(request.form)
        if policy is None:
            return self._refused(form)
        if not self._is_previewed(policy):
            return self._preview(form, policy)
        current = self._find(policy.name)
        if version_of(current) != form.version:
            return self._refused(form, EXISTS if form.is_new else "", CHANGED, 409)
        try:
            self._policies.set(policy)
        except PolicyError as error:
            return self._refused(form, error.problem, status=409)
        return self._to_list("saved-policy")

    @open_to(ADMIN)
    def remove(self) -> Response:
        """`name`: remove the policy. May switch."""
        name = request.form.get("name", "")
        try:
            self._policies.remove(name)
        except PolicyError as error:
            form = form_of(name, self._policies.get(name).document, "")
            return self._refused(form, error.problem, status=409)
        return self._to_list("removed-policy")

    def _preview(self, form: PolicyForm, policy: Policy) -> Response:
        try:
            task = self._policies.dry_run(policy)
        except PolicyError as error:
            return self._refused(form, error.problem, status=409)
        except ServiceUnavailable as error:  # too many tasks
            return self._refused(form, refusal=error.description or "", status=503)
        task.wait(PREVIEW_WAIT)
        return redirect(url_for("policy", task=task.id, version=form.version or None), 303)

    def _is_previewed(self, policy: Policy) -> bool:
        """Whether the task in the form is the finished preview of *policy*."""
        if not self._tasks.has(request.form.get("task", "")):
            return False
        task = self._tasks.find(request.form)
        return task.state == "done" and isinstance(task.subject, Effect) and task.subject.policy == policy

    def _find(self, name: str) -> ListedPolicy | None:
        try:
            return self._policies.get(name)
        except NotFound:
            return None

    def _refused(self, form: PolicyForm, name_error: str = "", refusal: str = "", status: int = 400) -> Response:
        """Return the form as it was submitted, with the mistakes."""
        errors = {NAME: name_error, **form.errors} if name_error else form.errors
        page = self._form_page(PolicyForm(form.version, form.values, errors), refusal=refusal or "Nothing was changed.")
        return make_response(page, status)

    def _form_page(
        self, form: PolicyForm, shown: ListedPolicy | None = None, *, task: Task | None = None, refusal: str = ""
    ) -> str:
        """Return the page with *form*; *task* is its preview. *shown* is the policy if the form was just opened."""
        current = shown or self._find(form.text(NAME))
        return render_template(
            "policy.html",
            form=form,
            current=current,
            row=_row(current, self._policies.count_tubes().get(current.name, 0)) if current is not None else None,
            is_editable=principal().is_admin and not (current is not None and current.is_from_file),
            task=task,
            effect=task.subject_as(Effect) if task is not None else None,
            refusal=refusal,
            groups=GROUPS,
            texts=SETTING_TEXTS,
        )

    def _to_list(self, notice: str) -> Response:
        late = None if self._commit() else "1"
        return redirect(url_for("policies", notice=notice, n=0, late=late), 303)


def _patterns(policy: ListedPolicy) -> list[str]:
    patterns = policy.document.get(PATTERNS, [])
    return patterns if isinstance(patterns, list) else []


def _rank(policy: ListedPolicy, key: str, matched: Mapping[str, int]) -> tuple[int, str]:
    """Return the sort key of *policy* in the order *key* of SORTS; *matched* has the number of tubes by policy."""
    priority = policy.document.get(PRIORITY)
    ranks = {
        "tubes": 0 if policy.problem else matched.get(policy.name, 0),
        "priority": priority if isinstance(priority, int) else 0,
        "source": int(policy.is_from_file),
    }
    return ranks.get(key, 0), policy.name


def _heads(query: str, order: Order) -> list[Head]:
    page, kept = url_for("policies"), {"q": query} if query else {}
    heads = Heads(order, BY_NAME, lambda sorting: f"{page}?{urlencode(kept | sorting)}")
    return [
        heads.head(css, label, help, key, descends_first=key in ("tubes", "priority"))
        for css, label, help, key in COLUMNS
    ]


def _row(policy: ListedPolicy, matched: int) -> PolicyRow:
    document = policy.document
    return PolicyRow(
        name=policy.name,
        patterns=_patterns(policy),
        priority=str(document.get(PRIORITY, text.NONE)),
        settings=setting_pairs(document),
        source="configuration file" if policy.is_from_file else "run time",
        matched=text.number(0 if policy.problem else matched),
        problem=policy.problem,
    )


def _summary(shown: int, found: int, total: int, query: str) -> str:
    policies = f"{text.number(total)} {'policy' if total == 1 else 'policies'}"
    if shown < found:
        return f"first {shown} of {text.number(found)}{' that match' if query else ''}, by name"
    return f"{text.number(found)} of {policies}" if query else policies
