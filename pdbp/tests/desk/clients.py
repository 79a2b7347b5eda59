"""zeep as a client of the example `desk`: python3 clients.py http://127.0.0.1:7211/pdbp [FILE WITH THE SECRET]

Calls the operations by what the WSDL says of them, by both versions of SOAP, and validates what comes back by its schema.
"""

import sys

import requests
import zeep
from lxml import etree
from zeep.plugins import HistoryPlugin
from zeep.transports import Transport

url = sys.argv[1]
session = requests.Session()
if len(sys.argv) > 2:
    with open(sys.argv[2]) as file:
        session.headers["Authorization"] = "Bearer " + file.read().strip()
schema = etree.XMLSchema(etree.fromstring(session.get(url + "?xsd").content))
history = HistoryPlugin(maxlen=1)
# strict, as it is by default: what the schema does not have is an error.
client = zeep.Client(url + "?wsdl", transport=Transport(session=session), plugins=[history])


def validate(*messages: dict) -> None:
    """The bodies, or the detail of the fault."""
    for message in messages:
        body = message["envelope"].find("{*}Body")[0]
        detail = body.find("{*}detail") if body.find("{*}detail") is not None else body.find("{*}Detail")
        one = etree.fromstring(etree.tostring(body if detail is None else detail[0]))
        schema.assertValid(one)


def fails(reason: str, call) -> None:
    try:
        call()
    except zeep.exceptions.Fault as fault:
        found = fault.detail.find(".//{urn:pdbp:desk}Reason").text
        assert found == reason, f"{found} in place of {reason}: {fault.message}"
        assert fault.message, "a fault says why"
    else:
        raise AssertionError(f"{reason} was expected")
    # The question need not be valid.
    validate(history.last_received)


class Patient:
    """Calls again what the desk is too busy for, as it may be on a busy machine."""

    def __init__(self, desk: zeep.proxy.ServiceProxy) -> None:
        self.desk = desk

    def __getattr__(self, operation: str):
        def call(*args, **kwargs):
            for _ in range(30):
                try:
                    return getattr(self.desk, operation)(*args, **kwargs)
                except zeep.exceptions.Fault as fault:
                    if fault.detail.find(".//{urn:pdbp:desk}Reason").text != "Busy":
                        raise
            raise AssertionError("the desk stays busy")

        return call


for port in ("Soap11", "Soap12"):
    desk = Patient(client.bind("Desk", port))
    # The mailbox of an earlier round may still be in the tables for a moment.
    assert "worker@node1" in desk.Parts(), desk.Parts()
    validate(history.last_sent, history.last_received)
    assert desk.Call("worker@node1", b"a question") == b"A QUESTION"
    validate(history.last_sent, history.last_received)
    assert desk.Call("worker", bytes(range(97, 123)) * 40_000, 60_000) == bytes(range(65, 91)) * 40_000
    # zeep has None for an empty element.
    assert not desk.Call(To="worker", Content=b"")
    assert desk.Send("worker", b"nobody waits for an answer") is None
    validate(history.last_sent, history.last_received)
    fails("NoSuchPart", lambda: desk.Call("nobody & <nothing>", b"x"))
    fails("TooLong", lambda: desk.Send("worker", bytes((4 << 20) + 1)))
    mailbox = desk.OpenMailbox("answers", IdleMs=600_000)
    validate(history.last_sent, history.last_received)
    assert mailbox == "answers@node0", mailbox
    desk.Send("worker", b"a question", mailbox)
    validate(history.last_sent, history.last_received)
    [message] = desk.Receive(mailbox, 0)
    validate(history.last_sent, history.last_received)
    assert (message.Number, message.From, message.Content) == (1, "worker@node1", b"A QUESTION"), message
    assert not desk.Receive(mailbox, message.Number, TimeoutMs=1)
    validate(history.last_sent, history.last_received)
    assert desk.CloseMailbox(mailbox) is None
    validate(history.last_sent, history.last_received)
    fails("NoSuchMailbox", lambda: desk.Receive(mailbox, 1))
    print(f"desk: zeep by {port}: all operations and faults are as the WSDL says")
